"""Compiles CUDA C++ with g++ and executes it on the CPU, with one fiber per thread.

    kernels/src/*.cu ─ include/ (CUDA's names) ─ entry.cpp ─ g++ ─ library ─┐
    device.py ─ streams.py ─ process.py ─ socket, shared memory ─ runtime/ ─┘

Each build (build.py) finds certain defects. tests/cusim checks this with kernels that have these
defects:

    plain   compiles fastest. Memory that was never written is NaN, so a missing barrier, copy or
            wait gives a wrong result in at least one order of threads. Faults name the kernel, the
            block, the thread and the line: divergent barriers, missing lanes, misaligned or illegal
            addresses, writes outside a buffer, indices outside an array, a return before copies
            have ended, and kernels that never end.
    fast    finds the same defects as `plain`. It is optimised, so that whole networks run.
    asan    uses AddressSanitizer and UndefinedBehaviorSanitizer. It also finds reads outside a
            buffer, and reports a fault at once.
    tsan    uses ThreadSanitizer. It finds two threads of a block that access the same memory
            without a barrier, a warp operation or an atomic operation in between, even if the
            result is right.
    ordered delays the stores of a block. Until a fence, other blocks may see these stores in any
            order. Plain loads of other blocks never see them (runtime/stores.h). Therefore, in
            random order, a missing fence gives a wrong result, and so does a load that the L1 cache
            may serve.
    profile finds no defects. It records which addresses the lanes of a warp access. accesses.py
            computes their cost on a GPU, and `python -m cusim.profile` prints it.

Blocks and threads run in one of three orders. In forward and reversed order, all warps advance
together. In random order, one warp runs up to its barrier before another warp runs. Therefore a
missing barrier gives a wrong result in at least one order, whichever warp should have waited.

Launches that may overlap on a GPU do overlap here, up to three at a time, except under
ThreadSanitizer. The blocks of a launch stop when they let the next launch begin. They continue when
the blocks of the next two launches wait for the previous launch. A wait does not order loads
through `const T* __restrict__` (kernels/src/dependent.cuh). Therefore, through such a pointer, a
launch reads the data as it was when the launch began. Weights are an exception, because no kernel
writes them.

The simulator cannot show:

  - Most errors between blocks, since the blocks of a launch run one after another. There is one
    exception: in random order, blocks pause at their atomic operations on global memory. Other
    dependencies between blocks show only if a result changes with the order of blocks. A block that
    waits in a loop for another block never ends, and the launch's time limit stops it.
  - Some effects of fences. A simulated fence orders the stores of its own thread, and all stores
    before the block's last barrier. It does not order another lane's stores before a __syncwarp.
  - Accesses that reach from one buffer into the next, if an engine divides one allocation into
    buffers. No red zone separates these buffers.
  - Speed, register spills, and the rounding of fast arithmetic and of tensor cores.
  - __device__ variables at namespace scope. The simulator would treat them as shared memory. No
    kernel has such variables.
"""
