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
