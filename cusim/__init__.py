"""Compiles CUDA C++ by g++ and executes it on the CPU, with one fiber for each thread.

    kernels/src/*.cu ─ include/ (CUDA's names) ─ entry.cpp ─ g++ ─ library ─┐
    device.py ─ streams.py ─ process.py ─ socket, shared memory ─ runtime/ ─┘

What it shows, and in which build (build.py; tests/cusim plants each defect):

    plain   compiled soonest. What was never written is NaN: a missing barrier, copy or wait gives
            a wrong result, in some order of threads at least. Faults with kernel, block, thread and
            line: divergent barriers, missing lanes, misaligned and illegal addresses, writes beside
            a buffer, indices beyond an array, a return with copies under way, no end.
    fast    the same, optimised: for whole networks.
    asan    AddressSanitizer and UndefinedBehaviorSanitizer: reads beside a buffer too, at once.
    tsan    ThreadSanitizer: two threads of a block that touch the same memory with no barrier,
            warp operation or atomic between, whether or not it changed the result.
    ordered what blocks store is seen by other blocks late, and in any order, until a fence; plain
            loads never see it (runtime/stores.h). In random order a missing fence, or a load that
            the L1 cache may answer, gives a wrong result.
    profile shows nothing wrong, but what accesses to memory would cost: which lanes of a warp touch
            which addresses (accesses.py; `python -m cusim.profile`).

In which order blocks and threads get their turn: forward and reversed keep warps in step; in random
order one warp runs ahead to its barrier before another gets a turn, so that a missing barrier shows
whichever side it protects.

Launches that may overlap do, three at a time, but under ThreadSanitizer: blocks of a launch stop
where they let the next one begin, and go on when blocks of two more have come to where they wait.
What a launch reads through `const T* __restrict__`, but for weights, is then memory as it was when
it began: no wait orders those loads (kernels/src/dependent.cuh).

What it cannot show:

  - Blocks of a launch run one after another; where the order is random, one is left at its atomic
    operations on global memory until all others ran as far, and the last to be left goes on first.
    What blocks owe each other otherwise shows only in that results may not depend on their order.
    A block that spins until another has done something never ends (the launch's time limit ends
    it). A fence orders a thread's own stores and those before the block's last barrier: what a
    lane stored before __syncwarp, another lane's fence does not.
  - Buffers that an engine carves from one allocation have no red zones between them.
  - Speed, register spills; how far fast arithmetic and tensor cores round.
  - __device__ variables at namespace scope would be taken for shared memory; no kernel has any.
"""
