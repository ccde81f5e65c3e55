"""CUDA kernels of the measurements, compiled by NVRTC on the device's own node; they include no header."""

import re

SOURCE = r"""
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

// ---- streaming; sizes are in 16-byte words; a workgroup moves 4 words a thread, all loads before the first store ----
// Fewer workgroups than that covers go around: grid-stride in units of 4 x blockDim words.

#define EACH_UNIT(words) \
    for (u64 first = (u64)blockIdx.x * blockDim.x * 4 + threadIdx.x; first < (words); \
         first += (u64)gridDim.x * blockDim.x * 4)
#define EACH_OF_4(words) \
    UNROLL for (int j = 0; j < 4; j++) if (const u64 i = first + j * blockDim.x; i < (words))

extern "C" __global__ void stream_read(const uint4* a, uint4* out, u64 words) {
    u32 sum = 0;
    EACH_UNIT(words) {
        uint4 v[4];
        EACH_OF_4(words) v[j] = a[i];
        EACH_OF_4(words) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x9e3779b9u) out[0].x = sum;
}

extern "C" __global__ void stream_write(uint4* out, u32 value, u64 words) {
    EACH_UNIT(words) EACH_OF_4(words) out[i] = make_uint4(value, (u32)i, value ^ (u32)i, ~value);
}

extern "C" __global__ void stream_copy(const uint4* a, uint4* out, u64 words) {
    EACH_UNIT(words) {
        uint4 v[4];
        EACH_OF_4(words) v[j] = a[i];
        EACH_OF_4(words) out[i] = v[j];
    }
}

__device__ __forceinline__ u32 add_halves(u32 a, u32 b) {
    u32 sum;
    asm("add.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

extern "C" __global__ void stream_add(const uint4* a, const uint4* b, uint4* out, u64 words) {
    EACH_UNIT(words) {
        uint4 x[4], y[4];
        EACH_OF_4(words) { x[j] = a[i]; y[j] = b[i]; }
        EACH_OF_4(words) out[i] = make_uint4(
            add_halves(x[j].x, y[j].x), add_halves(x[j].y, y[j].y),
            add_halves(x[j].z, y[j].z), add_halves(x[j].w, y[j].w));
    }
}

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

// ---- a few workgroups that load, read or copy, while others stream; an SM each, all in one kernel ----
// record: of each of the former how many nanoseconds it took; of each of the others the bytes that it read and wrote,
// and in how many nanoseconds, once all were in their stride.

enum { LOADS, READS, COPIES };
enum { READING = 1, WRITING = 2 };
enum { SETTLE_NS = 50000 };

__device__ __forceinline__ uint4 past_l1(const uint4* a) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(a) : "memory");
    return v;
}

extern "C" __global__ void __launch_bounds__(1024, 1) beside(
    int probe, int probes, int streams, const u32* chain, u32 start, const uint4* from, uint4* to, u64 words,
    const uint4* streamed, uint4* written, u64 stream_words, int* counters, u64* record
) {
    const int thread = threadIdx.x, block = blockIdx.x;
    if (thread == 0) {
        atomicAdd(counters, 1);
        seen(counters, gridDim.x, nanoseconds());
    }
    __syncthreads();
    const u64 began = nanoseconds();
    u32 sum = 0;
    if (block < probes) {
        while (nanoseconds() - began < 2 * SETTLE_NS) {}
        __syncthreads();
        const u64 t0 = nanoseconds();
        if (probe == LOADS && thread == 0) {
            u32 at = start;
            for (u64 i = 0; i < words; i += 8)
                asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(at) : "l"(chain + at) : "memory");
            sum = at;
        }
        // As the warps of NCCL do: 512 threads, each with eight loads of 16 bytes before the first store.
        if (probe != LOADS && thread < 512) for (u64 i = thread; i < words; i += 8 * 512) {
            const u64 at = block * words + i;
            uint4 v[8];
            UNROLL for (int j = 0; j < 8; j++) v[j] = past_l1(from + at + j * 512);
            UNROLL for (int j = 0; j < 8; j++)
                if (probe == COPIES) to[at + j * 512] = v[j];
                else sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
        }
        if (probe == COPIES) __threadfence();
        __syncthreads();
        if (thread == 0) {
            record[2 * block] = nanoseconds() - t0;
            atomicAdd(counters + 1, 1);
        }
    } else {
        u64 turns = 0, settled = 0, settled_at = 0;
        const u64 all = 4096ull * (gridDim.x - probes);
        for (u64 first = 4096ull * (block - probes); ; first += all) {
            if (first + 4096 > stream_words) first = 4096ull * (block - probes);
            const u64 at = first + thread;
            uint4 v[4] = {};
            UNROLL for (int j = 0; j < 4; j++) if (streams & READING) v[j] = past_l1(streamed + at + j * 1024);
            UNROLL for (int j = 0; j < 4; j++)
                if (streams & WRITING) written[at + j * 1024] = make_uint4(v[j].x, (u32)turns, thread, v[j].w);
                else sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
            turns++;
            if (!settled_at && nanoseconds() - began > SETTLE_NS) { settled = turns; settled_at = nanoseconds(); }
            if (!(turns & 7) && *(volatile int*)(counters + 1) >= probes) break;
        }
        if (thread == 0) {
            record[2 * block] = (turns - settled) * 65536 * ((streams & READING ? 1 : 0) + (streams & WRITING ? 1 : 0));
            record[2 * block + 1] = nanoseconds() - settled_at;
        }
    }
    if (sum == 0x9e3779b9u) counters[2] = sum;
}

// ---- memory of a peer, or one's own: what is stored in a place follows from the place ----

__device__ __forceinline__ u32 word_at(u64 i, u32 seed) { return (u32)i * 2654435761u + seed; }

// W words of 4 bytes with one instruction; i counts words.
template <int W> __device__ __forceinline__ void put(u32* out, u64 i, u32 seed) {
    const u32 a = word_at(i, seed), b = word_at(i + 1, seed), c = word_at(i + 2, seed), d = word_at(i + 3, seed);
    if (W == 1) asm volatile("st.global.u32 [%0], %1;" :: "l"(out + i), "r"(a) : "memory");
    if (W == 2) asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(out + i), "r"(a), "r"(b) : "memory");
    if (W == 4) asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
        :: "l"(out + i), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void put_half(u32* out, u64 half, u32 seed) {
    const u16 value = (u16)(word_at(half >> 1, seed) >> ((half & 1) * 16));
    asm volatile("st.global.u16 [%0], %1;" :: "l"((u16*)out + half), "h"(value) : "memory");
}

template <int W> __device__ __forceinline__ void get(u32* v, const u32* a) {
    if (W == 1) asm volatile("ld.global.u32 %0, [%1];" : "=r"(v[0]) : "l"(a));
    if (W == 2) asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1 % W]) : "l"(a));
    if (W == 4) asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v[0]), "=r"(v[1 % W]), "=r"(v[2 % W]), "=r"(v[3 % W]) : "l"(a));
}

template <int W> __device__ __forceinline__ void store_pieces(u32* out, u32 seed, u64 words) {
    EACH_UNIT(words / W) EACH_OF_4(words / W) put<W>(out, W * i, seed);
}

template <int W> __device__ __forceinline__ u32 sum_pieces(const u32* a, u64 words) {
    u32 sum = 0;
    EACH_UNIT(words / W) {
        u32 v[4][W] = {};
        EACH_OF_4(words / W) get<W>(v[j], a + W * i);
        UNROLL for (int j = 0; j < 4; j++) UNROLL for (int w = 0; w < W; w++) sum += v[j][w];
    }
    return sum;
}

// Neighbouring threads store neighbouring pieces of 4, 8 or 16 bytes.
extern "C" __global__ void store_words(u32* out, u32 seed, u64 words, int bytes) {
    if (bytes == 4) store_pieces<1>(out, seed, words);
    if (bytes == 8) store_pieces<2>(out, seed, words);
    if (bytes == 16) store_pieces<4>(out, seed, words);
}

// Loads likewise, four in flight a thread; adds the sum of all words to out.
extern "C" __global__ void load_words(const u32* a, u32* out, u64 words, int bytes) {
    u32 sum = bytes == 4 ? sum_pieces<1>(a, words) : bytes == 8 ? sum_pieces<2>(a, words) : sum_pieces<4>(a, words);
    asm volatile("redux.sync.add.u32 %0, %0, 0xffffffff;" : "+r"(sum));
    if ((threadIdx.x & 31) == 0) atomicAdd(out, sum);
}

// Ends of a GEMM: tiles of 128 x 256 halves in rows of `columns`, 8 warps. (0) Neighbouring threads store neighbouring
// pieces, a warp a row, of single halves all warps a row, as Triton does without and with a pointer that it knows
// nothing of; (1) a warp a row, 16 bytes a thread, half after half; (2) as the matrix units leave them: a warp 8 rows,
// 16 bytes of each (32 if a thread has 8).
extern "C" __global__ void __launch_bounds__(256) store_tiles(
    u32* out, u32 seed, int tile_rows, int columns, int pattern, int bytes
) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tiles_n = columns / 256;
    for (int tile = blockIdx.x; tile < tile_rows * tiles_n; tile += gridDim.x) {
        const u64 corner = (u64)(tile / tiles_n) * 128 * columns + tile % tiles_n * 256;
        if (pattern == 0 && bytes == 2)
            for (int row = 0; row < 128; row++) put_half(out, corner + (u64)row * columns + threadIdx.x, seed);
        else if (pattern < 2) for (int row = warp; row < 128; row += 8) {
            const u64 at = corner + (u64)row * columns;
            if (bytes == 16) put<4>(out, at / 2 + lane * 4, seed);
            UNROLL for (int i = 0; i < 4; i++) if (bytes == 4) put<1>(out, at / 2 + i * 32 + lane, seed);
            UNROLL for (int i = 0; i < 8; i++) if (bytes == 2) put_half(out, at + lane * 8 + i, seed);
        }
        if (pattern == 2) for (int i = 0; i < 8; i++) {
            const u64 start = corner + (u64)((warp >> 2) * 64 + i * 8 + (lane >> 2)) * columns + (warp & 3) * 64;
            const u64 at = start + (lane & 3) * 2;
            UNROLL for (int j = 0; j < 4; j++) if (bytes == 8) put<2>(out, start / 2 + (j * 4 + (lane & 3)) * 2, seed);
            UNROLL for (int j = 0; j < 8; j++) {
                if (bytes == 4) put<1>(out, (at + j * 8) / 2, seed);
                if (bytes == 2) { put_half(out, at + j * 8, seed); put_half(out, at + j * 8 + 1, seed); }
            }
        }
    }
}

// The bulk copy engine of an SM (Hopper's TMA): 1024 threads fill 16 KiB of shared memory, one stores it in pieces.
extern "C" __global__ void store_bulk(u32* out, u32 seed, u64 words, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(128) u32 staged[2][4096];
    int stage = 0;
    for (u64 first = (u64)blockIdx.x * 4096; first < words; first += (u64)gridDim.x * 4096, stage ^= 1) {
        if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        __syncthreads();
        const u64 i = first + threadIdx.x * 4;
        ((uint4*)staged[stage])[threadIdx.x] =
            make_uint4(word_at(i, seed), word_at(i + 1, seed), word_at(i + 2, seed), word_at(i + 3, seed));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            const u32 from = shared_address(staged[stage]);
            for (u32 at = 0; at < 16384; at += bytes)
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                    :: "l"((char*)(out + first) + at), "r"(from + at), "r"(bytes) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

// Each workgroup stores `words` words, 16 bytes a thread, turn by turn, all at once. record: nanoseconds until the last
// store was issued, and until a fence said that all arrived, over all turns.
extern "C" __global__ void store_bursts(u32* out, u32 seed, u32 words, int turns, int* counter, u64* record) {
    const u64 start = nanoseconds();
    u64 issued = 0, arrived = 0;
    for (int turn = 1; turn <= turns; turn++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(counter, 1);
            seen(counter, turn * gridDim.x, start);
        }
        __syncthreads();
        const u64 t0 = nanoseconds();
        for (u32 i = threadIdx.x * 4; i < words; i += blockDim.x * 4) put<4>(out, (u64)blockIdx.x * words + i, seed);
        __syncthreads();
        const u64 t1 = nanoseconds();
        if (threadIdx.x == 0) __threadfence_system();
        __syncthreads();
        issued += t1 - t0;
        arrived += nanoseconds() - t0;
    }
    if (threadIdx.x == 0) {
        record[blockIdx.x * 2] = issued;
        record[blockIdx.x * 2 + 1] = arrived;
    }
}

// ---- signals between two GPUs; each spins on its own memory; out: nanoseconds, 0 if the peer was lost ----

__device__ __forceinline__ void send(u32* data, u32 words, volatile int* flag, int turn) {
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) put<1>(data, i, turn);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (words) __threadfence_system();
        *flag = turn;
    }
}

// One after the other stores data (or none) and a flag at the other.
extern "C" __global__ void signals(
    u32* data, u32 words, volatile int* mine, volatile int* theirs, int turns, int first, u64* out
) {
    const u64 start = nanoseconds();
    bool is_there = true;
    for (int turn = 1; turn <= turns; turn++) {
        if (first) send(data, words, theirs, turn);
        if (threadIdx.x == 0 && is_there) is_there = seen(mine, turn, start);
        __syncthreads();
        if (!first) send(data, words, theirs, turn);
    }
    if (threadIdx.x == 0) out[0] = is_there ? nanoseconds() - start : 0;
}

// A barrier of all workgroups of both GPUs, again and again. The workgroup that comes last tells the peer.
extern "C" __global__ void barriers(int* counter, volatile int* mine, volatile int* theirs, int turns, u64* out) {
    const u64 start = nanoseconds();
    bool is_there = true;
    for (int turn = 1; turn <= turns; turn++) {
        const int all = turn * gridDim.x;
        __syncthreads();
        if (threadIdx.x == 0 && is_there) {
            __threadfence();
            if (atomicAdd(counter, 1) + 1 == all) {
                __threadfence_system();
                *theirs = turn;
            }
            is_there = seen(mine, turn, start) && seen(counter, all, start);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) out[0] = is_there ? nanoseconds() - start : 0;
}

// ---- a tiled tensor-core GEMM: C[m,n] = A[m,k] B[k,n], all row-major FP16, sums in FP32 ----
// 128 x 256 tiles, K in slices of 32, four slices in shared memory, 8 warps of 64 x 64; one workgroup fits an SM.
// Grid of as many workgroups as tiles: the hardware dispatches them. Smaller grid: workgroup b does b, b + grid, ...

enum { TILE_M = 128, TILE_N = 256, SLICE = 32, STAGES = 4, PITCH_A = 40, PITCH_B = 264 };
enum { STAGE_HALVES = TILE_M * PITCH_A + SLICE * PITCH_B };

__device__ __forceinline__ void copy_16(u32 to, const u16* from, bool inside) {
    const int n = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(n));
}

__device__ __forceinline__ void load_slice(
    u32 shared, int stage, const u16* A, const u16* B, int M, int N, int K, int row0, int col0, int k0
) {
    const u32 a = shared + stage * STAGE_HALVES * 2;
    const u32 b = a + TILE_M * PITCH_A * 2;
    UNROLL for (int i = 0; i < 2; i++) {
        const int chunk = threadIdx.x + i * 256;
        const int r = chunk >> 2, c = (chunk & 3) * 8;
        const bool inside = row0 + r < M && k0 + c < K;
        copy_16(a + (r * PITCH_A + c) * 2, inside ? A + (u64)(row0 + r) * K + k0 + c : A, inside);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        const int chunk = threadIdx.x + i * 256;
        const int r = chunk >> 5, c = (chunk & 31) * 8;
        const bool inside = k0 + r < K && col0 + c < N;
        copy_16(b + (r * PITCH_B + c) * 2, inside ? B + (u64)(k0 + r) * N + col0 + c : B, inside);
    }
}

// Whose rows a GPU computes, in which order, and where they go.
struct Scatter {
    u16* const* owners;  // an array on each GPU, with a place for what each GPU sends
    int rank, n_owners, order, epilogue;
};
enum { NEXT, OWN_FIRST, XOR, NAIVE };
enum { FRAGMENTS, ROWS, BULK };  // a tile is stored as the matrix units leave it, or in rows of 16 bytes a thread

// The index-th tile of this GPU, and in `out` where row 0 would be: the owner's rows in groups of 8 tiles, column by
// column.
__device__ __forceinline__ int scattered(
    const Scatter& to, int index, int M, int N, int tiles_n, int n_tiles, u16*& out
) {
    const int of_owner = n_tiles / to.n_owners, step = index / of_owner, n = to.n_owners;
    const int owner = to.order == NEXT ? (to.rank + 1 + step) % n : to.order == OWN_FIRST ? (to.rank + step) % n
        : to.order == XOR ? to.rank ^ ((step + 1) % n) : step;
    out = to.owners[owner] + (long long)(to.rank - owner) * (M / n) * N;
    const int down = of_owner / tiles_n, high = down % 8 ? down : 8;
    const int group = index % of_owner / (high * tiles_n), inside = index % of_owner % (high * tiles_n);
    return (owner * down + group * high + inside % high) * tiles_n + inside / high;
}

template <bool SCATTERS> __device__ __forceinline__ void compute_tiles(
    const u16* A, const u16* B, u16* C, int M, int N, int K, int tiles_n, int n_tiles, u64* record, Scatter to
) {
    extern __shared__ __align__(128) u16 memory[];
    const u32 shared = shared_address(memory);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int warp_m = (warp >> 2) * 64, warp_n = (warp & 3) * 64;
    const int slices = (K + SLICE - 1) / SLICE;
    for (int index = blockIdx.x; index < n_tiles; index += gridDim.x) {
        u64 started = 0, computed = 0;
        if (threadIdx.x == 0) started = nanoseconds();
        const int tile = SCATTERS ? scattered(to, index, M, N, tiles_n, n_tiles, C) : index;
        const int row0 = tile / tiles_n * TILE_M, col0 = tile % tiles_n * TILE_N;
        float acc[4][8][4] = {};
        UNROLL for (int s = 0; s < STAGES - 1; s++) {
            if (s < slices) load_slice(shared, s, A, B, M, N, K, row0, col0, s * SLICE);
            asm volatile("cp.async.commit_group;");
        }
        for (int s = 0; s < slices; s++) {
            asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2));
            __syncthreads();
            const int ahead = s + STAGES - 1;
            if (ahead < slices) load_slice(shared, ahead % STAGES, A, B, M, N, K, row0, col0, ahead * SLICE);
            asm volatile("cp.async.commit_group;");
            const u32 a_base = shared + (s % STAGES) * STAGE_HALVES * 2;
            const u32 b_base = a_base + TILE_M * PITCH_A * 2;
            UNROLL for (int k = 0; k < SLICE; k += 16) {
                u32 a[4][4], b[4][4];
                UNROLL for (int i = 0; i < 4; i++) {
                    const u32 at = a_base + ((warp_m + i * 16 + (lane & 15)) * PITCH_A + k + (lane >> 4) * 8) * 2;
                    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                        : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3]) : "r"(at));
                }
                UNROLL for (int j = 0; j < 4; j++) {
                    const u32 at = b_base + ((k + (lane & 15)) * PITCH_B + warp_n + j * 16 + (lane >> 4) * 8) * 2;
                    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                        : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j][2]), "=r"(b[j][3]) : "r"(at));
                }
                UNROLL for (int i = 0; i < 4; i++)
                    UNROLL for (int j = 0; j < 8; j++)
                        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                            : "+f"(acc[i][j][0]), "+f"(acc[i][j][1]), "+f"(acc[i][j][2]), "+f"(acc[i][j][3])
                            : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]),
                              "r"(b[j >> 1][(j & 1) * 2]), "r"(b[j >> 1][(j & 1) * 2 + 1]));
            }
        }
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        if (threadIdx.x == 0) computed = nanoseconds();
        UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int j = 0; j < 8; j++) {
                const int col = col0 + warp_n + j * 8 + (lane & 3) * 2;
                UNROLL for (int half = 0; half < 2; half++) {
                    const int row = row0 + warp_m + i * 16 + (lane >> 2) + half * 8;
                    u32 pair;
                    asm("cvt.rn.f16x2.f32 %0, %1, %2;"
                        : "=r"(pair) : "f"(acc[i][j][half * 2 + 1]), "f"(acc[i][j][half * 2]));
                    if (SCATTERS && to.epilogue != FRAGMENTS)
                        *(u32*)(memory + (row - row0) * PITCH_B + col - col0) = pair;
                    else if (row < M && col < N) *(u32*)(C + (u64)row * N + col) = pair;
                }
            }
        if (SCATTERS && to.epilogue != FRAGMENTS) {
#if __CUDA_ARCH__ >= 900
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
            __syncthreads();
            if (to.epilogue == ROWS) for (int row = warp; row < TILE_M; row += 8)
                if (row0 + row < M && col0 + lane * 8 < N) *(uint4*)(C + (u64)(row0 + row) * N + col0 + lane * 8) =
                    *(const uint4*)(memory + row * PITCH_B + lane * 8);
#if __CUDA_ARCH__ >= 900
            const int r = threadIdx.x;
            if (to.epilogue == BULK && r < TILE_M && row0 + r < M) {
                const u32 bytes = 2 * (N - col0 < TILE_N ? N - col0 : TILE_N);
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                    :: "l"(C + (u64)(row0 + r) * N + col0), "r"(shared + r * PITCH_B * 2), "r"(bytes) : "memory");
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            }
#endif
        }
        __syncthreads();
        if (threadIdx.x == 0 && record) {
            u32 multiprocessor;
            asm volatile("mov.u32 %0, %smid;" : "=r"(multiprocessor));
            record[index * 4] = multiprocessor;
            record[index * 4 + 1] = started;
            record[index * 4 + 2] = computed;
            record[index * 4 + 3] = nanoseconds();
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) tiled_gemm(
    const u16* A, const u16* B, u16* C, int M, int N, int K, int tiles_n, int n_tiles, u64* record
) {
    compute_tiles<false>(A, B, C, M, N, K, tiles_n, n_tiles, record, Scatter());
}

extern "C" __global__ void __launch_bounds__(256, 1) scatter_gemm(
    const u16* A, const u16* B, int M, int N, int K, int tiles_n, int n_tiles, u64* record,
    u16* const* owners, int rank, int n_owners, int order, int epilogue
) {
    compute_tiles<true>(A, B, 0, M, N, K, tiles_n, n_tiles, record, Scatter{owners, rank, n_owners, order, epilogue});
}
"""

TILE = (128, 256)  # rows and columns of an output tile of tiled_gemm
TILED_THREADS = 256
TILED_SHARED_BYTES = 4 * (128 * 40 + 32 * 264) * 2

NAMES = tuple(re.findall(r"__global__ void (?:__launch_bounds__\(.*?\) )?(\w+)\(", SOURCE))
