#include "trainium/plan/paper.h"

nmlp_paper_blocks nmlp_paper_choose_blocks(const nmlp_kernel_request *rq, nmlp_paper_blocks earlier,
                                           const nmlp_paper_blocks *later, int default_table) {
    nmlp_paper_blocks b = earlier;
    if (nmlp_tiling_get(rq->tiling, "table", default_table) == 2) {
        while (rq->shape.s < later->s_from) later++;
        b = *later;
    }
    b.m = nmlp_tiling_get(rq->tiling, "m", b.m);
    b.r = nmlp_tiling_get(rq->tiling, "r", b.r);
    b.k = nmlp_tiling_get(rq->tiling, "k", b.k);
    b.n = nmlp_tiling_get(rq->tiling, "n", b.n);
    return b;
}

void nmlp_paper_params(nmlp_program *p, const nmlp_kernel_shape *s) {
    nmlp_program_add_param(p, "S", s->s);
    nmlp_program_add_param(p, "H", s->h);
    nmlp_program_add_param(p, "R", s->r);
    nmlp_program_add_param(p, "O", s->o);
}
