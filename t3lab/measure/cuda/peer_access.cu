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
