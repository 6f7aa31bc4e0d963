/* A batch of sequences: their page tables, the rows of a step, choices made on the device, and steps run ahead of the
 * text.
 *
 * A step of decode rows only, all of them choosing, is a CUDA graph per (rows, chunks of keys), both rounded up: it
 * reads ids and positions from device memory and leaves there the ids and positions of the next step. So the next steps
 * of the same sequences are started before the host has seen the choice: they are the same graph again. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "cuda/batch/batch_internal.h"

enum {
    GRAPH_BUCKETS = 6,
    CHUNK_BUCKETS = 5,
    ROWS_MIN = 32, /* what few rows are padded to */
    WARM_UP_ROWS = 128,
    WARM_UP_ITEMS = 2
};

static const int32_t graph_rows[GRAPH_BUCKETS] = {8, 16, 32, 64, 128, 256};

struct sequence {
    int64_t length;
    uint32_t n_choices; /* asked for so far, those of steps ahead included */
    uint32_t current;   /* number of the choice after the last token */
    float inverse_temperature;
    uint32_t seed;
    bool chosen; /* the device has made or makes a choice after the last token */
    bool ahead;  /* in the set of the steps run ahead */
};

struct graph {
    bool warm; /* has run once, so that all its code is loaded: capturing must not load any */
    cudaGraphExec_t exec;
};

struct nmlp_cuda_batch {
    nmlp_cuda_forward forward;
    int32_t *tables;       /* [max_sequences, table_pages] page numbers */
    int64_t changed_begin; /* sequences whose table changed since the device last got it; empty: begin >= end */
    int64_t changed_end;
    struct sequence *sequences; /* [max_sequences] */
    int32_t *words;             /* rows of a step on the host, laid out as on the device */
    nmlp_cuda_query_tile *tiles;
    int32_t *first_rows; /* [max_sequences] of every item of the step */
    struct graph graphs[GRAPH_BUCKETS][CHUNK_BUCKETS];
    int32_t *set; /* sequences of the last step, where it can be run again as it is */
    int64_t n_set;
    int64_t n_ahead; /* steps of that set that are ahead of the text */
};

static void mark_changed(nmlp_cuda_batch *b, int64_t sequence) {
    bool none = b->changed_begin >= b->changed_end;
    if (none || sequence < b->changed_begin) b->changed_begin = sequence;
    if (none || sequence >= b->changed_end) b->changed_end = sequence + 1;
}

/* ---- sequences ---- */

/* Choices of steps ahead that are not taken stay counted; their keys and values are overwritten. */
static void forget_steps_ahead(nmlp_cuda_batch *b) {
    for (int64_t i = 0; i < b->n_set; i++) b->sequences[b->set[i]].ahead = false;
    b->n_set = 0;
    b->n_ahead = 0;
}

void nmlp_cuda_batch_set_length(nmlp_cuda_batch *b, int32_t sequence, int64_t length) {
    struct sequence *s = &b->sequences[sequence];
    if (s->ahead) forget_steps_ahead(b);
    s->length = length;
    s->chosen = false;
}

void nmlp_cuda_batch_set_pages(nmlp_cuda_batch *b, int32_t sequence, const int32_t *pages, int64_t n) {
    int32_t *table = b->tables + (int64_t)sequence * b->forward.table_pages;
    if (memcmp(table, pages, (size_t)n * sizeof *pages) == 0) return;
    memcpy(table, pages, (size_t)n * sizeof *pages);
    mark_changed(b, sequence);
}

nmlp_status nmlp_cuda_batch_copy_page(nmlp_cuda_batch *b, int32_t to, int32_t from, nmlp_err *err) {
    return nmlp_cuda_forward_copy_page(&b->forward, to, from, err);
}

/* ---- the rows of a step ---- */

static float inverse_of(const nmlp_cuda_batch_item *item) {
    if (!item->choose) return -1.0f;
    return item->temperature > 0 ? (float)(1.0 / item->temperature) : 0.0f;
}

static uint32_t seed_of(const nmlp_cuda_batch_item *item) { return (uint32_t)(item->seed ^ item->seed >> 32); }

/* Row `row` of a step of `n` rows. */
static void put_row(nmlp_cuda_batch *b, int32_t n, int32_t row, int32_t id, int64_t position,
                    const nmlp_cuda_batch_item *item) {
    float inverse = item ? inverse_of(item) : -1.0f;
    int32_t *at = b->words + row;
    at[0] = id;
    at[n] = (int32_t)position;
    at[2 * (int64_t)n] = item ? item->sequence : -1;
    memcpy(&at[3 * (int64_t)n], &inverse, sizeof inverse);
    at[4 * (int64_t)n] = item ? (int32_t)seed_of(item) : 0;
    at[5 * (int64_t)n] = item ? (int32_t)b->sequences[item->sequence].n_choices : 0;
    at[6 * (int64_t)n] = row; /* the head's, where every row has one */
}

static bool has_prompt_kernel(const nmlp_cuda_batch *b) {
    return nmlp_cuda_batch_has_prompt_kernel((int32_t)b->forward.engine->model->config.head_dim);
}

static int32_t chunks_for(int64_t n_keys) {
    int64_t wanted = (n_keys + NMLP_CUDA_ATTENTION_CHUNK - 1) / NMLP_CUDA_ATTENTION_CHUNK;
    int32_t n = 1;
    while (n < wanted && n < NMLP_CUDA_ATTENTION_CHUNKS_MAX) n *= 2;
    return n;
}

static void add_item(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *item, nmlp_cuda_step_shape *shape, int32_t *row) {
    int64_t length = b->sequences[item->sequence].length;
    bool decodes = item->n == 1 || !has_prompt_kernel(b);
    for (int64_t i = 0; i < item->n; i++) put_row(b, shape->n_rows, *row + (int32_t)i, item->ids[i], length + i, item);
    for (int64_t i = 0; !decodes && i < item->n; i += NMLP_CUDA_ATTENTION_TILE_ROWS) {
        int64_t n = item->n - i < NMLP_CUDA_ATTENTION_TILE_ROWS ? item->n - i : NMLP_CUDA_ATTENTION_TILE_ROWS;
        b->tiles[shape->n_tiles++] = (nmlp_cuda_query_tile){
            .row = *row + (int32_t)i, .n = (int32_t)n, .position = (int32_t)(length + i), .sequence = item->sequence};
    }
    if (decodes) {
        int32_t chunks = chunks_for(length + item->n);
        shape->n_decode_rows += (int32_t)item->n;
        if (chunks > shape->n_chunks) shape->n_chunks = chunks;
    }
    *row += (int32_t)item->n;
}

/* Fills the rows, decode rows first, and pads them to shape->n_rows. */
static void fill_rows(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items,
                      nmlp_cuda_step_shape *shape) {
    int32_t row = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n_items; i++) {
            if ((items[i].n == 1) != (pass == 0)) continue;
            b->first_rows[i] = row;
            add_item(b, &items[i], shape, &row);
        }
    }
    for (; row < shape->n_rows; row++) put_row(b, shape->n_rows, row, 0, 0, NULL);
}

static nmlp_status upload(nmlp_cuda_batch *b, void *to, const void *from, size_t bytes, nmlp_err *err) {
    if (bytes == 0) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->forward.stream),
                           "uploading a step", err);
}

static nmlp_status upload_tables(nmlp_cuda_batch *b, nmlp_err *err) {
    if (b->changed_begin >= b->changed_end) return NMLP_OK;
    int64_t first = b->changed_begin * b->forward.table_pages;
    int64_t n = (b->changed_end - b->changed_begin) * b->forward.table_pages;
    NMLP_RETURN_IF_FAILED(upload(b, b->forward.tables + first, b->tables + first, (size_t)n * sizeof *b->tables, err));
    b->changed_begin = b->changed_end = 0;
    return NMLP_OK;
}

static nmlp_status upload_step(nmlp_cuda_batch *b, const nmlp_cuda_step_shape *shape, nmlp_err *err) {
    size_t words = NMLP_CUDA_ROW_WORDS * (size_t)shape->n_rows;
    NMLP_RETURN_IF_FAILED(upload(b, b->forward.row_words, b->words, words * sizeof *b->words, err));
    NMLP_RETURN_IF_FAILED(upload(b, b->forward.tiles, b->tiles, (size_t)shape->n_tiles * sizeof *b->tiles, err));
    return upload_tables(b, err);
}

/* ---- steps of decode rows, as graphs ---- */

static int32_t graph_bucket(const nmlp_cuda_batch *b, int64_t n) {
    for (int32_t i = 0; i < GRAPH_BUCKETS; i++)
        if (n <= graph_rows[i]) return graph_rows[i] <= b->forward.max_rows ? i : -1;
    return -1;
}

/* All layers, the head and the choice of every row. */
static nmlp_status enqueue_decode(nmlp_cuda_batch *b, const nmlp_cuda_step_shape *shape, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_cuda_forward_layers(&b->forward, shape, err));
    for (int32_t first = 0; first < shape->n_rows; first += NMLP_CUDA_LOGIT_ROWS) {
        int32_t left = shape->n_rows - first;
        NMLP_RETURN_IF_FAILED(nmlp_cuda_forward_head(&b->forward, shape, first,
                                                     left < NMLP_CUDA_LOGIT_ROWS ? left : NMLP_CUDA_LOGIT_ROWS, err));
    }
    return NMLP_OK;
}

static nmlp_status capture(nmlp_cuda_batch *b, const nmlp_cuda_step_shape *shape, cudaGraphExec_t *exec,
                           nmlp_err *err) {
    cudaGraph_t graph = NULL;
    cudaStream_t stream = b->forward.stream;
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph", err));
    nmlp_status st = enqueue_decode(b, shape, err);
    cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (st == NMLP_OK) st = NMLP_CUDA_CHECK(ended, "ending a graph", err);
    if (st == NMLP_OK) st = NMLP_CUDA_CHECK(cudaGraphInstantiate(exec, graph, 0), "instantiating a graph", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return st;
}

/* One step of the rows that are on the device, in bucket `bucket`; the longest has n_keys keys after it. */
static nmlp_status run_decode(nmlp_cuda_batch *b, int32_t bucket, int64_t n_keys, nmlp_err *err) {
    int32_t chunks = chunks_for(n_keys);
    int j = 0;
    while (1 << j < chunks) j++;
    struct graph *g = &b->graphs[bucket][j];
    const nmlp_cuda_step_shape shape = {
        .n_rows = graph_rows[bucket], .n_decode_rows = graph_rows[bucket], .n_chunks = chunks};
    if (!g->warm) {
        g->warm = true;
        return enqueue_decode(b, &shape, err);
    }
    if (!g->exec) NMLP_RETURN_IF_FAILED(capture(b, &shape, &g->exec, err));
    return NMLP_CUDA_CHECK(cudaGraphLaunch(g->exec, b->forward.stream), "launching a graph", err);
}

/* ---- steps of any rows ---- */

/* Head rows of an item: the last ones, whose logits or choice are wanted. */
static int64_t head_rows_of(const nmlp_cuda_batch_item *item) {
    return item->n_logits > 0 ? item->n_logits : item->choose ? 1 : 0;
}

/* Writes the step's list of head rows; returns how many. */
static int32_t list_head_rows(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items, int32_t n_rows) {
    int32_t *list = b->words + 6 * (int64_t)n_rows;
    int32_t n = 0;
    for (int64_t i = 0; i < n_items; i++) {
        int64_t wanted = head_rows_of(&items[i]);
        for (int64_t j = items[i].n - wanted; j < items[i].n; j++) {
            int32_t row = b->first_rows[i] + (int32_t)j;
            if (j + 1 < items[i].n) { /* a choice follows the last row alone */
                float none = -1.0f;
                memcpy(&b->words[3 * (int64_t)n_rows + row], &none, sizeof none);
            }
            list[n++] = row;
        }
    }
    return n;
}

/* Logits of head rows first..first+n-1 to the items that want them. */
static nmlp_status fetch_logits(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items, int32_t first,
                                int32_t n, nmlp_err *err) {
    int64_t vocab = b->forward.engine->model->config.vocab;
    int64_t pitch = nmlp_cuda_pad(vocab);
    int64_t at = 0;
    for (int64_t i = 0; i < n_items; i++) {
        int64_t wanted = head_rows_of(&items[i]);
        for (int64_t j = 0; j < wanted; j++, at++) {
            if (at < first || at >= first + n || items[i].n_logits == 0) continue;
            NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(
                cudaMemcpyAsync(items[i].logits + j * vocab, b->forward.logits + (at - first) * pitch,
                                (size_t)vocab * sizeof(float), cudaMemcpyDeviceToHost, b->forward.stream),
                "fetching logits", err));
        }
    }
    return NMLP_OK;
}

static nmlp_status run_mixed(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items, int64_t n_rows,
                             nmlp_err *err) {
    nmlp_cuda_step_shape shape = {.n_rows = nmlp_cuda_forward_padded(&b->forward, (int32_t)n_rows), .n_chunks = 1};
    bool fetches = false;
    fill_rows(b, items, n_items, &shape);
    int32_t n_head = list_head_rows(b, items, n_items, shape.n_rows);
    for (int64_t i = 0; i < n_items; i++) fetches = fetches || items[i].n_logits > 0;
    NMLP_RETURN_IF_FAILED(upload_step(b, &shape, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_forward_layers(&b->forward, &shape, err));
    for (int32_t first = 0; first < n_head; first += NMLP_CUDA_LOGIT_ROWS) {
        int32_t n = n_head - first < NMLP_CUDA_LOGIT_ROWS ? n_head - first : NMLP_CUDA_LOGIT_ROWS;
        NMLP_RETURN_IF_FAILED(nmlp_cuda_forward_head(&b->forward, &shape, first, n, err));
        if (fetches) NMLP_RETURN_IF_FAILED(fetch_logits(b, items, n_items, first, n, err));
    }
    return fetches ? NMLP_CUDA_CHECK(cudaStreamSynchronize(b->forward.stream), "running a step", err) : NMLP_OK;
}

/* Decode rows only, which may be run again as they are. */
static nmlp_status run_choosing(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items, int32_t bucket,
                                nmlp_err *err) {
    nmlp_cuda_step_shape shape = {.n_rows = graph_rows[bucket], .n_chunks = 1};
    int64_t longest = 0;
    fill_rows(b, items, n_items, &shape);
    NMLP_RETURN_IF_FAILED(upload_step(b, &shape, err));
    for (int64_t i = 0; i < n_items; i++) {
        struct sequence *s = &b->sequences[items[i].sequence];
        if (s->length + 1 > longest) longest = s->length + 1;
        b->set[i] = items[i].sequence;
        s->ahead = true;
    }
    b->n_set = n_items;
    return run_decode(b, bucket, longest, err);
}

/* One decode row, of one sequence: the launch that waits for nobody else's rows. The device chooses in any case. */
static nmlp_status run_one(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *item, nmlp_err *err) {
    struct sequence *s = &b->sequences[item->sequence];
    const nmlp_cuda_decode_state state = {.token = item->ids[0],
                                          .length = (int32_t)s->length,
                                          .n_choices = s->n_choices,
                                          .inverse_temperature = item->choose ? inverse_of(item) : 0.0f,
                                          .seed = seed_of(item)};
    NMLP_RETURN_IF_FAILED(upload_tables(b, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_forward_set_one(&b->forward, &state, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_forward_one(&b->forward, item->sequence, 1, err));
    s->n_choices += !item->choose;
    s->ahead = item->choose;
    b->set[0] = item->sequence;
    b->n_set = item->choose;
    if (item->n_logits == 0) return NMLP_OK;
    size_t bytes = (size_t)b->forward.engine->model->config.vocab * sizeof *item->logits;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(
        cudaMemcpyAsync(item->logits, b->forward.one_logits, bytes, cudaMemcpyDeviceToHost, b->forward.stream),
        "fetching logits", err));
    return NMLP_CUDA_CHECK(cudaStreamSynchronize(b->forward.stream), "running a step", err);
}

/* ---- choices ---- */

static bool is_chosen(const nmlp_cuda_batch *b, int32_t sequence, uint32_t number, int32_t *id) {
    const _Atomic uint64_t *ring = (const _Atomic uint64_t *)(const void *)b->forward.choices;
    uint64_t choice = atomic_load_explicit(
        &ring[(int64_t)sequence * NMLP_CUDA_CHOICE_RING + number % NMLP_CUDA_CHOICE_RING], memory_order_acquire);
    *id = (int32_t)(uint32_t)choice;
    return choice >> 32 == number;
}

/* The device writes choices to the host's memory; the driver is asked now and then whether it is still running. */
static nmlp_status await_choice(const nmlp_cuda_batch *b, int32_t sequence, int32_t *id, nmlp_err *err) {
    enum { POLLS_PER_QUERY = 1 << 16, POLLS_PER_YIELD = 1 << 8 };
    const struct sequence *s = &b->sequences[sequence];
    if (!s->chosen) return nmlp_fail(err, NMLP_E_ARG, "there is no choice before a token is appended");
    for (;;) {
        for (int i = 1; i <= POLLS_PER_QUERY; i++) {
            if (is_chosen(b, sequence, s->current, id)) return NMLP_OK;
            /* a thread that was woken on this CPU, such as a server's, would wait for the end of a time slice */
            if (i % POLLS_PER_YIELD == 0) sched_yield();
        }
        cudaError_t e = cudaStreamQuery(b->forward.stream);
        if (e == cudaErrorNotReady) continue;
        NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(e, "running a step", err));
        if (is_chosen(b, sequence, s->current, id)) return NMLP_OK;
        return nmlp_fail(err, NMLP_E_IO, "CUDA: the device ended a step without choosing a token");
    }
}

/* Whether the items append to every sequence of the set the token that was chosen, and choose the same way: then the
 * step has been started already. */
static nmlp_status is_next_ahead(const nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items, bool *is,
                                 nmlp_err *err) {
    *is = false;
    if (b->n_ahead == 0 || n_items != b->n_set) return NMLP_OK;
    for (int64_t i = 0; i < n_items; i++) {
        const struct sequence *s = &b->sequences[items[i].sequence];
        int32_t id = -1;
        if (!s->ahead || items[i].n != 1 || items[i].n_logits != 0 || !items[i].choose ||
            inverse_of(&items[i]) != s->inverse_temperature || seed_of(&items[i]) != s->seed)
            return NMLP_OK;
        NMLP_RETURN_IF_FAILED(await_choice(b, items[i].sequence, &id, err));
        if (id != items[i].ids[0]) return NMLP_OK;
    }
    *is = true;
    return NMLP_OK;
}

nmlp_status nmlp_cuda_batch_step(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items,
                                 nmlp_err *err) {
    int64_t n_rows = 0;
    bool choosing = true;
    bool started = false;
    NMLP_RETURN_IF_FAILED(is_next_ahead(b, items, n_items, &started, err));
    if (started) {
        b->n_ahead--;
        for (int64_t i = 0; i < n_items; i++) {
            b->sequences[items[i].sequence].length++;
            b->sequences[items[i].sequence].current++;
        }
        return NMLP_OK;
    }
    forget_steps_ahead(b);
    for (int64_t i = 0; i < n_items; i++) {
        n_rows += items[i].n;
        choosing = choosing && items[i].n == 1 && items[i].n_logits == 0 && items[i].choose;
    }
    int32_t bucket = choosing ? graph_bucket(b, n_items) : -1;
    NMLP_RETURN_IF_FAILED(n_items == 1 && n_rows == 1 ? run_one(b, items, err)
                          : bucket >= 0               ? run_choosing(b, items, n_items, bucket, err)
                                                      : run_mixed(b, items, n_items, n_rows, err));
    for (int64_t i = 0; i < n_items; i++) {
        struct sequence *s = &b->sequences[items[i].sequence];
        s->length += items[i].n;
        s->chosen = items[i].choose;
        s->inverse_temperature = inverse_of(&items[i]);
        s->seed = seed_of(&items[i]);
        s->n_choices += items[i].choose;
        s->current = s->n_choices;
    }
    return NMLP_OK;
}

/* Steps that the contexts of the set have room for, at most `wanted`. */
static int64_t room_ahead(const nmlp_cuda_batch *b, int64_t wanted) {
    for (int64_t i = 0; i < b->n_set; i++) {
        int64_t room = b->forward.context - b->sequences[b->set[i]].length;
        if (room < wanted) wanted = room;
    }
    return wanted;
}

static nmlp_status start_ahead(nmlp_cuda_batch *b, int64_t n, nmlp_err *err) {
    int64_t longest = 0;
    for (int64_t i = 0; i < b->n_set; i++)
        if (b->sequences[b->set[i]].length > longest) longest = b->sequences[b->set[i]].length;
    NMLP_RETURN_IF_FAILED(upload_tables(b, err));
    if (b->n_set == 1 && n > 0) {
        NMLP_RETURN_IF_FAILED(nmlp_cuda_forward_one(&b->forward, b->set[0], n, err));
        b->sequences[b->set[0]].n_choices += (uint32_t)n;
        b->n_ahead += n;
        return NMLP_OK;
    }
    for (int64_t step = 1; step <= n; step++) {
        NMLP_RETURN_IF_FAILED(run_decode(b, graph_bucket(b, b->n_set), longest + step, err));
        for (int64_t i = 0; i < b->n_set; i++) b->sequences[b->set[i]].n_choices++;
        b->n_ahead++;
    }
    return NMLP_OK;
}

nmlp_status nmlp_cuda_batch_choose(nmlp_cuda_batch *b, nmlp_cuda_batch_choice *items, int64_t n_items, int64_t more,
                                   nmlp_err *err) {
    bool whole = b->n_set > 0 && n_items == b->n_set && b->n_ahead == 0;
    for (int64_t i = 0; i < n_items && whole; i++) whole = b->sequences[items[i].sequence].ahead;
    if (whole && more > 0)
        NMLP_RETURN_IF_FAILED(
            start_ahead(b, room_ahead(b, more < NMLP_CUDA_BATCH_AHEAD ? more : NMLP_CUDA_BATCH_AHEAD), err));
    for (int64_t i = 0; i < n_items; i++) NMLP_RETURN_IF_FAILED(await_choice(b, items[i].sequence, &items[i].id, err));
    return NMLP_OK;
}

int64_t nmlp_cuda_batch_steps_ahead(const nmlp_cuda_batch *b) { return b->n_ahead; }

/* ---- life of a batch ---- */

/* One step of n rows of nothing in each of `n_items` sequences. */
static nmlp_status run_nothing(nmlp_cuda_batch *b, int64_t n_items, int64_t n, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_cuda_batch_item items[WARM_UP_ITEMS];
    int32_t *ids = nmlp_mem_new((size_t)n, sizeof *ids, err);
    if (!ids) return NMLP_E_NOMEM;
    for (int32_t i = 0; i < n_items; i++)
        items[i] = (nmlp_cuda_batch_item){.sequence = i, .ids = ids, .n = n, .choose = true};
    NMLP_TRY(nmlp_cuda_batch_step(b, items, n_items, err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaStreamSynchronize(b->forward.stream), "warming up", err));
out:
    for (int32_t i = 0; i < n_items; i++) nmlp_cuda_batch_set_length(b, i, 0);
    nmlp_mem_free(ids);
    return st;
}

/* Every graph that the batch can come to need, run with rows of no sequence: made when it is first wanted, a graph
 * would hold up all sequences for several steps. */
static nmlp_status make_graphs(nmlp_cuda_batch *b, nmlp_err *err) {
    int32_t most_chunks = chunks_for(b->forward.context);
    for (int32_t bucket = 0; bucket < GRAPH_BUCKETS && graph_rows[bucket] <= b->forward.max_rows; bucket++) {
        if (b->forward.max_sequences <= (bucket ? graph_rows[bucket - 1] : 1)) break;
        nmlp_cuda_step_shape shape = {.n_rows = graph_rows[bucket], .n_chunks = 1};
        fill_rows(b, NULL, 0, &shape);
        NMLP_RETURN_IF_FAILED(upload_step(b, &shape, err));
        for (int32_t chunks = 1; chunks <= most_chunks; chunks *= 2)
            for (int run = 0; run < 2; run++) /* the first loads code, the second makes the graph */
                NMLP_RETURN_IF_FAILED(run_decode(b, bucket, (int64_t)chunks * NMLP_CUDA_ATTENTION_CHUNK, err));
    }
    return NMLP_CUDA_CHECK(cudaStreamSynchronize(b->forward.stream), "warming up", err);
}

/* Few rows, one, some alone, and as many as a step takes: kernels and cuBLASLt's plans are loaded, and large GEMMs
 * measured, now and not when the first request waits. */
static nmlp_status warm_up(nmlp_cuda_batch *b, nmlp_err *err) {
    int64_t most = b->forward.max_rows < b->forward.context ? b->forward.max_rows : b->forward.context;
    int64_t n_items = b->forward.max_sequences < WARM_UP_ITEMS ? b->forward.max_sequences : WARM_UP_ITEMS;
    for (int64_t i = 0; i < n_items * b->forward.table_pages; i++)
        b->tables[i] = (int32_t)(i % b->forward.table_pages % b->forward.n_pages);
    for (int64_t i = 0; i < n_items; i++) mark_changed(b, i);
    NMLP_RETURN_IF_FAILED(run_nothing(b, 1, most < WARM_UP_ROWS ? most : WARM_UP_ROWS, err));
    NMLP_RETURN_IF_FAILED(run_nothing(b, 1, 1, err));
    if (n_items > 1) NMLP_RETURN_IF_FAILED(run_nothing(b, n_items, 1, err));
    if (most > 1) NMLP_RETURN_IF_FAILED(run_nothing(b, 1, 2, err));
    /* rows of a prompt beside sequences: every number that they are padded to; the largest is measured below */
    for (int64_t n = 2 * ROWS_MIN; n < most && b->forward.max_sequences > 1;
         n += nmlp_cuda_forward_step((int32_t)n + 1))
        NMLP_RETURN_IF_FAILED(run_nothing(b, 1, n, err));
    NMLP_RETURN_IF_FAILED(make_graphs(b, err));
    nmlp_cuda_blas_measure(b->forward.blas, true);
    nmlp_status st = run_nothing(b, 1, most, err);
    nmlp_cuda_blas_measure(b->forward.blas, false);
    return st;
}

nmlp_status nmlp_cuda_batch_create(nmlp_cuda_batch **out, const nmlp_cuda_engine *engine,
                                   const nmlp_cuda_batch_options *o, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_cuda_batch *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    size_t n = (size_t)o->max_sequences;
    b->forward = (nmlp_cuda_forward){.engine = engine,
                                     .max_rows = (int32_t)(o->max_rows < ROWS_MIN ? ROWS_MIN : o->max_rows),
                                     .max_sequences = (int32_t)o->max_sequences,
                                     .context = o->context,
                                     .n_pages = o->n_pages,
                                     .table_pages = nmlp_cuda_divide_up(o->context, NMLP_CUDA_PAGE_POSITIONS)};
    size_t rows = (size_t)b->forward.max_rows;
    b->sequences = nmlp_mem_new(n, sizeof *b->sequences, err);
    b->tables = nmlp_mem_new(n * (size_t)b->forward.table_pages, sizeof *b->tables, err);
    b->set = nmlp_mem_new(n, sizeof *b->set, err);
    b->first_rows = nmlp_mem_new(n, sizeof *b->first_rows, err);
    b->words = nmlp_mem_new(NMLP_CUDA_ROW_WORDS * rows, sizeof *b->words, err);
    b->tiles = nmlp_mem_new(rows, sizeof *b->tiles, err);
    if (!b->sequences || !b->tables || !b->set || !b->first_rows || !b->words || !b->tiles) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(nmlp_cuda_forward_create(&b->forward, o->rope, err));
    NMLP_TRY(warm_up(b, err));
    *out = b;
out:
    if (st != NMLP_OK) nmlp_cuda_batch_destroy(b);
    return st;
}

void nmlp_cuda_batch_destroy(nmlp_cuda_batch *b) {
    if (!b) return;
    for (int i = 0; i < GRAPH_BUCKETS; i++)
        for (int j = 0; j < CHUNK_BUCKETS; j++)
            if (b->graphs[i][j].exec) (void)cudaGraphExecDestroy(b->graphs[i][j].exec);
    nmlp_cuda_forward_destroy(&b->forward);
    nmlp_mem_free(b->sequences);
    nmlp_mem_free(b->tables);
    nmlp_mem_free(b->set);
    nmlp_mem_free(b->first_rows);
    nmlp_mem_free(b->words);
    nmlp_mem_free(b->tiles);
    nmlp_mem_free(b);
}
