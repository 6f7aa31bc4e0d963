/* The forward pass on the CPU: rows of several texts through the layers, a chunk at a time. Whoever owns it (a session,
 * a batch) owns the KV memory too and says where each row stands.
 *
 * Letters: S rows of a chunk, H hidden, V vocabulary, I intermediate. */
#ifndef NMLP_ENGINE_FORWARD_CPU_H
#define NMLP_ENGINE_FORWARD_CPU_H

#include "engine/experts_cpu.h"
#include "engine/session.h"
#include "engine/split_mlp_cpu.h"
#include "engine/weights_cpu.h"

/* Layers that keep the keys and values of all positions, and in a cache of pages, apart from them, those with a window,
 * whose pages are dropped behind it. */
enum { NMLP_CPU_CACHE_ALL, NMLP_CPU_CACHE_WINDOW, NMLP_CPU_CACHE_KINDS };

/* Keys and values of layers of one kind: layers lie layer_step_bytes apart, in each of them pages as nmlp_kv has them.
 */
typedef struct nmlp_cpu_cache_part {
    char *memory;
    size_t bytes;
    size_t page_step_bytes;
} nmlp_cpu_cache_part;

typedef struct nmlp_cpu_cache {
    int64_t len;  /* most positions of a text */
    int64_t page; /* positions of a page; 0: no pages */
    size_t layer_step_bytes;
    nmlp_cpu_cache_part parts[NMLP_CPU_CACHE_KINDS]; /* without pages the first alone */
} nmlp_cpu_cache;

/* Rows row..row+n-1 of a chunk, which stand at positions first..first+n-1 of their text. */
typedef struct nmlp_cpu_rows {
    int64_t row;
    int64_t n;
    int64_t first;
    const int32_t *pages[NMLP_CPU_CACHE_KINDS]; /* of the text; NULL: no pages */
} nmlp_cpu_rows;

typedef struct nmlp_cpu_forward {
    const nmlp_cpu_weights *weights;
    nmlp_cpu_cache cache;
    int64_t chunk; /* most rows */
    int64_t max_texts;
    int64_t rows_embedded;
    bool observed;
    nmlp_status status; /* not NMLP_OK: processes that share the model lost each other, for the reason in err */
    nmlp_err err;
    nmlp_observer observer;
    int64_t *vocab_first;      /* [processes+1] where each one's part of the logits begins; NULL: one has all */
    nmlp_attention *attention; /* [max_texts] */
    float *rope;               /* [len, R] */
    float *rope_query;         /* [len, R] where queries grow with their position, else rope */
    float *rope_local;         /* [len, R] of layers with a window, where they have a rope of their own */
    float *hidden;             /* [chunk, H] residual stream */
    float *normed;             /* [chunk, H] */
    float *mixed;              /* [chunk, max(q_dim, H)] attention output, then MLP output */
    float *q;                  /* [chunk, n_heads*D] */
    float *k_rows;             /* [chunk, n_kv_heads*D] before they go to the cache */
    float *v_rows;
    float *inner; /* [chunk, ranks of q, k and v] behind the v of factorised ones, then of o; NULL: all are dense */
    float *gate;  /* [chunk, I], where observed */
    float *up;
    float *act;
    nmlp_cpu_experts experts;  /* where layers have them */
    nmlp_cpu_split_room split; /* where processes share thin factors too */
    void *floats;              /* all of the above */
    size_t floats_bytes;
    void *workspace; /* in huge pages: the matmuls of a chunk walk through it again and again */
    size_t workspace_bytes;
} nmlp_cpu_forward;

/* The shape of a cache, without memory. */
nmlp_cpu_cache nmlp_cpu_cache_of_pages(const nmlp_cpu_weights *weights, int64_t len, int64_t page,
                                       const int64_t n_pages[NMLP_CPU_CACHE_KINDS]);
/* The same for one text in one piece. */
nmlp_cpu_cache nmlp_cpu_cache_of_text(const nmlp_cpu_weights *weights, int64_t len);
size_t nmlp_cpu_cache_bytes(const nmlp_cpu_cache *cache);

/* Up to `chunk` rows of up to max_texts texts at a time; `observed` makes room for observers. The cache's memory is
 * allocated too. A zeroed one may be finished without having been begun. */
nmlp_status nmlp_cpu_forward_init(nmlp_cpu_forward *f, const nmlp_cpu_weights *weights, const nmlp_cpu_cache *cache,
                                  int64_t chunk, int64_t max_texts, bool observed, nmlp_err *err);
void nmlp_cpu_forward_fini(nmlp_cpu_forward *f);

/* rows [S,H] of the embedding. */
void nmlp_cpu_forward_embed(nmlp_cpu_forward *f, const int32_t *ids, int64_t s, float *rows);
/* The attention of a layer, in place, on rows [S,H] of different texts, `n` of them. */
void nmlp_cpu_forward_attention(nmlp_cpu_forward *f, int64_t layer, float *rows, const nmlp_cpu_rows *texts, int64_t n,
                                int64_t s);
/* The same for pieces that follow each other in one text or overwrite each other: one sees what those before it left.
 */
void nmlp_cpu_forward_attention_in_turn(nmlp_cpu_forward *f, int64_t layer, float *rows, const nmlp_cpu_rows *pieces,
                                        int64_t n, int64_t s);
/* out [S,H] = what the MLP of a layer sees of rows. */
void nmlp_cpu_forward_mlp_input(nmlp_cpu_forward *f, int64_t layer, const float *rows, int64_t s, float *out);
/* Adds the output y [S,H] of a layer's MLP to rows as the layer does; y is spent. */
void nmlp_cpu_forward_add_mlp(nmlp_cpu_forward *f, int64_t layer, float *rows, float *y, int64_t s);
void nmlp_cpu_forward_mlp(nmlp_cpu_forward *f, int64_t layer, float *rows, int64_t s);
/* out [S,H] = final norm of rows. */
void nmlp_cpu_forward_final_norm(nmlp_cpu_forward *f, const float *rows, int64_t s, float *out);
/* logits [S,V] of rows [S,H] after the final norm. */
void nmlp_cpu_forward_logits(nmlp_cpu_forward *f, const float *rows, int64_t s, float *logits);

#endif
