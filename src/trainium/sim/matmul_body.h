/* Body of the matmul, included once per instruction set with: VEC, VLEN, MR, V_ZERO, V_SET1(x), V_LOAD(p),
 * V_STORE(p, v), V_FMA(a, b, c), MATMUL_NAME. Operands are packed so that a step over k touches neighbouring memory. */
enum { NR = 2 * VLEN };

static void pack_a(const nmlp_sim_matmul *p, float *packed) {
    for (int m0 = 0; m0 < p->m; m0 += MR) {
        int rows = p->m - m0 < MR ? p->m - m0 : MR;
        for (int k = 0; k < p->k; k++, packed += MR) {
            const float *src = p->a + k * p->a_stride + m0;
            for (int i = 0; i < rows; i++) packed[i] = src[i];
            for (int i = rows; i < MR; i++) packed[i] = 0.0f;
        }
    }
}

static void pack_b(const nmlp_sim_matmul *p, int64_t n0, int cols, float *packed) {
    for (int k = 0; k < p->k; k++, packed += NR) {
        const float *src = p->b + k * p->b_stride + n0;
        for (int i = 0; i < cols; i++) packed[i] = src[i];
        for (int i = cols; i < NR; i++) packed[i] = 0.0f;
    }
}

static void tile(const float *a, const float *b, int k_count, float *out /* [MR][NR] */) {
    VEC acc[MR][2];
    for (int i = 0; i < MR; i++) acc[i][0] = acc[i][1] = V_ZERO;
    for (int k = 0; k < k_count; k++, a += MR, b += NR) {
        VEC b0 = V_LOAD(b), b1 = V_LOAD(b + VLEN);
        for (int i = 0; i < MR; i++) {
            VEC x = V_SET1(a[i]);
            acc[i][0] = V_FMA(x, b0, acc[i][0]);
            acc[i][1] = V_FMA(x, b1, acc[i][1]);
        }
    }
    for (int i = 0; i < MR; i++) {
        V_STORE(out + i * NR, acc[i][0]);
        V_STORE(out + i * NR + VLEN, acc[i][1]);
    }
}

void MATMUL_NAME(const nmlp_sim_matmul *p, int64_t n_begin, int64_t n_end, float *scratch) {
    float *packed_a = scratch, *packed_b = scratch + 128 * 144;
    _Alignas(64) float block[MR * NR];
    pack_a(p, packed_a);
    for (int64_t n0 = n_begin; n0 < n_end; n0 += NR) {
        int cols = n_end - n0 < NR ? (int)(n_end - n0) : NR;
        pack_b(p, n0, cols, packed_b);
        for (int m0 = 0; m0 < p->m; m0 += MR) {
            int rows = p->m - m0 < MR ? p->m - m0 : MR;
            tile(packed_a + (int64_t)m0 * p->k, packed_b, p->k, block);
            for (int i = 0; i < rows; i++) {
                float *dst = p->out + (m0 + i) * p->out_stride + n0;
                const float *src = block + i * NR;
                if (p->accumulate)
                    for (int j = 0; j < cols; j++) dst[j] += src[j];
                else
                    for (int j = 0; j < cols; j++) dst[j] = src[j];
            }
        }
    }
}
