"""Compiles CUDA C++ with g++ and executes it on the CPU, with one fiber per thread.

    kernels/src/*.cu ─ include/ (CUDA's names) ─ entry.cpp ─ g++ ─ library ─┐
    device.py ─ streams.py ─ process.py ─ socket, shared memory ─ runtime/ ─┘

Each build (build.py) finds other defects; tests/cusim plants each of these defects:

    plain   compiles fastest. Memory that was never written is NaN, so a missing barrier, copy or
            wait gives a wrong result in at least one order of threads. Faults name the kernel, the
            block, the thread and the line: divergent barriers, missing lanes, misaligned or illegal
            addresses, writes outside a buffer, indices outside an array, a return before copies
            have ended, and kernels that never end.
    fast    finds the same defects. It is optimised and runs whole networks.
    asan    AddressSanitizer and UndefinedBehaviorSanitizer: also finds reads outside a buffer, and
            reports a fault at once.
    tsan    ThreadSanitizer: finds two threads of a block that access the same memory without a
            barrier, warp operation or atomic operation between, even if the result is right.
    ordered delays the stores of a block, and shows them to other blocks in any order until a fence;
            plain loads never see them (runtime/stores.h). In random order a missing fence, or a
            load that the L1 cache may serve, gives a wrong result.
    profile finds no defects. It records which lanes of a warp access which addresses, from which
            the cost on a GPU follows (accesses.py; `python -m cusim.profile`).

Blocks and threads take turns in one of three orders. In forward and reversed order, warps stay in
step. In random order one warp runs up to its barrier before another warp runs. So a missing barrier
gives a wrong result in some order, whichever warp should have waited.

Up to three launches that may overlap do overlap, except under ThreadSanitizer. The blocks of a
launch stop where they let the next launch begin. They continue when the blocks of the next two
launches have reached their wait. No wait orders loads through `const T* __restrict__`
(kernels/src/dependent.cuh). So through such a pointer a launch reads the data from the time when it
began; weights are excepted, because no kernel writes them.

The simulator cannot show:

  - Most errors between blocks, since the blocks of a launch run one after another. In random order
    one block stops at its atomic operations on global memory until all other blocks have come as
    far, and the block that stopped last continues first. Other dependencies between blocks show
    only if a result changes with the order. A block that spins until another block has acted never
    ends, and is stopped by the launch's time limit. A fence orders the stores of its own thread,
    and stores before the block's last barrier. It does not order stores of another lane before
    __syncwarp.
  - Accesses that reach from one buffer into the next, if an engine divides one allocation into
    buffers: there are no red zones between them.
  - Speed, register spills, and the rounding of fast arithmetic and of tensor cores.
  - __device__ variables at namespace scope, which it would treat as shared memory; no kernel has
    any.
"""
