/* The program as a whole: capacities, accumulation; and the report of violations. */
#include "trainium/neuron/check.h"

#include <inttypes.h>

#include "trainium/neuron/check_internal.h"
#include "trainium/neuron/program_text.h"

static const char *const rule_names[] = {
#define RULE_NAME(name, words) #name,
    NMLP_RULES(RULE_NAME)
#undef RULE_NAME
};

static const char *const rule_words[] = {
#define RULE_WORDS(name, words) words,
    NMLP_RULES(RULE_WORDS)
#undef RULE_WORDS
};

const char *nmlp_rule_name(nmlp_rule rule) { return rule_names[rule]; }
const char *nmlp_rule_words(nmlp_rule rule) { return rule_words[rule]; }

nmlp_status nmlp_check_refuse(nmlp_checker *ck, nmlp_rule rule, int64_t found, int64_t allowed, const char *detail) {
    if (ck->violation) *ck->violation = (nmlp_violation){rule, ck->instr, found, allowed};
    nmlp_str text;
    nmlp_str_init(&text);
    if (ck->instr >= 0) {
        nmlp_str_printf(&text, "instruction %d `", ck->instr);
        nmlp_program_print_instr(ck->p, &ck->p->instrs[ck->instr], &text);
        nmlp_str_puts(&text, "`");
    } else {
        nmlp_str_printf(&text, "program %s", ck->p->name);
    }
    nmlp_status st = nmlp_fail(
        ck->err, NMLP_E_ILLEGAL, "%.600s breaks rule %s on %s: %s: found %" PRId64 ", allowed %" PRId64 " (%s)",
        nmlp_str_text(&text), rule_names[rule], ck->m->name, detail, found, allowed, rule_words[rule]);
    nmlp_str_fini(&text);
    return st;
}

int64_t nmlp_program_sbuf_bytes(const nmlp_program *p) {
    int64_t bytes = 0;
    for (size_t i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].space == NMLP_SPACE_SBUF)
            bytes += nmlp_buffer_copy_bytes(&p->buffers[i]) * p->buffers[i].copies;
    return bytes;
}

static int64_t copy_banks(const nmlp_buffer *b, const nmlp_machine *m) {
    int64_t bank = (int64_t)m->psum_bank_bytes;
    return (nmlp_buffer_copy_bytes(b) + bank - 1) / bank;
}

int64_t nmlp_program_psum_banks(const nmlp_program *p, const nmlp_machine *m) {
    int64_t banks = 0;
    for (size_t i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].space == NMLP_SPACE_PSUM) banks += copy_banks(&p->buffers[i], m) * p->buffers[i].copies;
    return banks;
}

/* What must be in SBUF at the same time even if the compiler spills all it can: one row of every managed buffer. */
static int64_t least_sbuf_bytes(const nmlp_program *p) {
    int64_t bytes = 0;
    for (size_t i = 0; i < p->n_buffers; i++) {
        const nmlp_buffer *b = &p->buffers[i];
        if (b->space != NMLP_SPACE_SBUF) continue;
        if (b->managed)
            bytes += b->dims[b->n_dims - 1] * (int64_t)nmlp_nc_dtype_bytes(b->dtype);
        else
            bytes += nmlp_buffer_copy_bytes(b) * b->copies;
    }
    return bytes;
}

static bool has_dma_transpose(const nmlp_program *p) {
    bool some = false;
    for (size_t i = 0; i < p->n_instrs; i++) some = some || p->instrs[i].op == NMLP_OP_DMA_TRANSPOSE;
    return some;
}

static nmlp_status check_capacity(nmlp_checker *ck) {
    const nmlp_machine *m = ck->m;
    for (size_t i = 0; i < ck->p->n_buffers; i++)
        if (ck->p->buffers[i].partitions > (int)m->partitions)
            return nmlp_check_refuse(ck, NMLP_RULE_partition_count, ck->p->buffers[i].partitions,
                                     (int64_t)m->partitions, ck->p->buffers[i].name);
    int64_t sbuf = least_sbuf_bytes(ck->p), banks = nmlp_program_psum_banks(ck->p, m);
    if (sbuf > (int64_t)m->sbuf_usable_bytes)
        return nmlp_check_refuse(ck, NMLP_RULE_sbuf_capacity, sbuf, (int64_t)m->sbuf_usable_bytes,
                                 "bytes per partition");
    if (banks > (int64_t)m->psum_banks)
        return nmlp_check_refuse(ck, NMLP_RULE_psum_capacity, banks, (int64_t)m->psum_banks, "banks");
    if (has_dma_transpose(ck->p) && banks > nmlp_machine_psum_banks(m, true))
        return nmlp_check_refuse(ck, NMLP_RULE_dma_transpose_bank, banks, nmlp_machine_psum_banks(m, true), "banks");
    return NMLP_OK;
}

typedef struct scope {
    int loops[NMLP_LOOP_DEPTH_MAX]; /* nodes around the current one */
    int depth;
} scope;

static void scope_enter(const nmlp_program *p, scope *s, int node) {
    while (s->depth > 0 && p->nodes[s->loops[s->depth - 1]].end <= node) s->depth--;
}

/* How many of the loops around `node` are also around the last alloc of `buffer` before it. -1 for a scope that the
 * alloc's body has left does not occur: such an alloc is passed over. */
static int alloc_depth(const nmlp_program *p, const scope *s, int buffer, int node) {
    for (int at = node - 1; at >= 0; at--) {
        const nmlp_node *n = &p->nodes[at];
        if (n->kind != NMLP_NODE_INSTR) continue;
        const nmlp_instr *in = &p->instrs[n->instr];
        if (in->op != NMLP_OP_ALLOC || in->dst.buffer != buffer) continue;
        int depth = 0;
        while (depth < s->depth && s->loops[depth] < at) depth++;
        bool visible = true; /* every body open at the alloc must still be open at the node */
        for (int i = 0; i < at; i++) {
            bool body = p->nodes[i].kind == NMLP_NODE_LOOP || p->nodes[i].kind == NMLP_NODE_IF;
            if (body && p->nodes[i].end > at && p->nodes[i].end <= node) visible = false;
        }
        if (visible) return depth;
    }
    return 0;
}

static bool indexes_with(const nmlp_buf_ref *ref, int n_dims, int var) {
    for (int d = 0; d < n_dims; d++)
        for (int i = 0; i < ref->start[d].n_terms; i++)
            if (ref->start[d].terms[i].var == var) return true;
    return false;
}

/* Was the buffer written by a matmul earlier, since its alloc? */
static bool matmul_before(const nmlp_program *p, int buffer, int node) {
    for (int at = node - 1; at >= 0; at--) {
        if (p->nodes[at].kind != NMLP_NODE_INSTR) continue;
        const nmlp_instr *in = &p->instrs[p->nodes[at].instr];
        if (in->dst.buffer != buffer) continue;
        if (in->op == NMLP_OP_MATMUL) return true;
        if (in->op == NMLP_OP_ALLOC) return false;
    }
    return false;
}

static nmlp_status check_accumulate(nmlp_checker *ck, const scope *s, int node) {
    const nmlp_program *p = ck->p;
    const nmlp_instr *in = &p->instrs[p->nodes[node].instr];
    const nmlp_accumulate *acc = &in->accumulate;
    int buffer = in->dst.buffer;
    if (!acc->always && acc->n_vars == 0) return NMLP_OK;
    if (acc->always && !matmul_before(p, buffer, node))
        return nmlp_check_refuse(ck, NMLP_RULE_accumulate_first, 1, 0, "accumulates where nothing was written");
    int inner = alloc_depth(p, s, buffer, node);
    for (int v = 0; !acc->always && v < acc->n_vars; v++) {
        bool reduces = false;
        for (int i = inner; i < s->depth; i++) {
            const nmlp_node *loop = &p->nodes[s->loops[i]];
            if (loop->kind == NMLP_NODE_LOOP && loop->loop == acc->vars[v]) reduces = true;
        }
        if (!reduces || indexes_with(&in->dst, p->buffers[buffer].n_dims, acc->vars[v]))
            return nmlp_check_refuse(ck, NMLP_RULE_accumulate_first, 1, 0,
                                     "accumulates over a loop around the allocation, or one that selects the result");
    }
    if (ck->m->generation >= 4) return NMLP_OK;
    for (size_t i = 0; i < p->n_instrs; i++) {
        const nmlp_instr *other = &p->instrs[i];
        if (other->op == NMLP_OP_MATMUL || other->op == NMLP_OP_ALLOC || other->op == NMLP_OP_DMA_STORE) continue;
        if (other->dst.buffer == buffer)
            return nmlp_check_refuse(ck, NMLP_RULE_accumulate_foreign, (int64_t)i, -1,
                                     "the buffer is also written by this instruction");
    }
    return NMLP_OK;
}

nmlp_status nmlp_program_check(const nmlp_program *p, const nmlp_machine *m, nmlp_violation *violation, nmlp_err *err) {
    nmlp_checker ck = {.p = p, .m = m, .violation = violation, .err = err, .instr = -1};
    scope s = {0};
    NMLP_RETURN_IF_FAILED(check_capacity(&ck));
    for (int at = 0; at < (int)p->n_nodes; at++) {
        const nmlp_node *node = &p->nodes[at];
        scope_enter(p, &s, at);
        if (node->kind == NMLP_NODE_LOOP || node->kind == NMLP_NODE_IF) s.loops[s.depth++] = at;
        if (node->kind != NMLP_NODE_INSTR) continue;
        ck.instr = node->instr;
        NMLP_RETURN_IF_FAILED(nmlp_check_instr(&ck, &p->instrs[node->instr]));
        if (p->instrs[node->instr].op == NMLP_OP_MATMUL) NMLP_RETURN_IF_FAILED(check_accumulate(&ck, &s, at));
    }
    return NMLP_OK;
}
