// ---- latency ----

// One thread follows a chain of indices, past the L1. out: nanoseconds, cycles, where the chain stands.
extern "C" __global__ void chase(const u32* chain, u32 start, int steps, int active_block, u64* out) {
    if (blockIdx.x != active_block) return;
    u32 i = start;
    const u64 t0 = nanoseconds();
    const long long c0 = clock64();
    for (int s = 0; s < steps; s++) asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(i) : "l"(chain + i));
    asm volatile("" :: "r"(i) : "memory");
    if (i != 0xffffffffu) {
        const long long c1 = clock64();
        out[0] = nanoseconds() - t0;
        out[1] = (u64)(c1 - c0);
        out[2] = i;
    }
}

__device__ __forceinline__ bool seen(volatile int* flag, int least, u64 since) {
    for (u32 spins = 0; *flag < least; spins++)
        if ((spins & 0xffff) == 0xffff && nanoseconds() - since > 4000000000ull) return false;
    return true;
}
