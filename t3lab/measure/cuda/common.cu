typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
#define UNROLL _Pragma("unroll")

__device__ __forceinline__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    u32 at;
    asm("{ .reg .u64 address; cvta.to.shared.u64 address, %1; cvt.u32.u64 %0, address; }" : "=r"(at) : "l"(pointer));
    return at;
}

extern "C" __global__ void empty() {}

// Holds a stream until the host sets the flag, so that launches are queued before the clock starts. Gives up in time.
extern "C" __global__ void gate(volatile int* flag, u64 patience_ns) {
    const u64 until = nanoseconds() + patience_ns;
    while (*flag == 0 && nanoseconds() < until) {}
}
