#include "train/trainer.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash64.h"
#include "base/ints.h"
#include "model/fingerprint.h"
#include "neuronmlp/version.h"

enum {
    MICRO_TOKENS = 1024, /* computed at once: enough rows for the matmuls, activations of one layer still small */
    MOST_WRITTEN = 256   /* windows the teacher writes; they come again when more are needed */
};

/* Everything the weights of every step depend on. */
static nmlp_status set_fingerprint(nmlp_trainer *t, const char *kernels, int64_t n_ids, nmlp_err *err) {
    const nmlp_recover_options *o = &t->options;
    int64_t whole[] = {
        o->mode,          o->set,        o->steps,   o->batch,    o->context,         o->warmup, o->lora_rank,
        (int64_t)o->seed, o->eval_every, o->heldout, o->patience, o->teacher ? 1 : 0, n_ids,     (int64_t)t->n_trained};
    double parts[] = {o->explore, o->match, o->rate, o->rate_floor, o->clip, o->weight_decay};
    const char *products = nmlp_train_net_exec(t->net)->products->name;
    uint64_t hash = nmlp_hash64(NMLP_VERSION_STRING, sizeof NMLP_VERSION_STRING, 0);
    hash = nmlp_hash64(kernels, strlen(kernels), hash);
    hash = nmlp_hash64(products, strlen(products), hash);
    hash = nmlp_hash64(whole, sizeof whole, hash);
    hash = nmlp_hash64(parts, sizeof parts, hash);
    hash = nmlp_hash64(t->corpus.ids, (size_t)n_ids * sizeof *t->corpus.ids, hash);
    NMLP_RETURN_IF_FAILED(nmlp_model_fingerprint(&hash, t->model, o->pool, err));
    if (o->teacher) NMLP_RETURN_IF_FAILED(nmlp_model_fingerprint(&hash, o->teacher, o->pool, err));
    t->fingerprint = hash;
    return NMLP_OK;
}

static nmlp_status add_trained(nmlp_trainer *t, float *data, float *grad, int64_t n, nmlp_err *err) {
    nmlp_train_trainable *w = &t->trained[t->n_trained];
    *w = (nmlp_train_trainable){.data = data, .grad = grad, .n = n};
    w->mean = nmlp_arena_new(&t->arena, (size_t)n, sizeof(float), err);
    w->square = nmlp_arena_new(&t->arena, (size_t)n, sizeof(float), err);
    t->best[t->n_trained] = nmlp_arena_new(&t->arena, (size_t)n, sizeof(float), err);
    if (!w->mean || !w->square || !t->best[t->n_trained]) return NMLP_E_NOMEM;
    t->n_trained++;
    return NMLP_OK;
}

static nmlp_status add_adapter(nmlp_trainer *t, nmlp_train_param *p, nmlp_err *err) {
    nmlp_train_adapter *a = &t->adapters[t->n_adapters];
    uint64_t seed = t->options.seed * 1000003u + t->n_adapters;
    NMLP_RETURN_IF_FAILED(nmlp_train_adapter_init(a, p, t->options.lora_rank, seed, &t->arena, err));
    t->n_adapters++;
    NMLP_RETURN_IF_FAILED(add_trained(t, a->a, a->da, p->rows * a->rank, err));
    return add_trained(t, a->b, a->db, a->rank * p->cols, err);
}

static nmlp_status collect_trained(nmlp_trainer *t, nmlp_err *err) {
    size_t n;
    nmlp_train_param *params = nmlp_train_net_params(t->net, &n);
    t->trained = nmlp_arena_new(&t->arena, 2 * n, sizeof *t->trained, err);
    t->best = nmlp_arena_new(&t->arena, 2 * n, sizeof *t->best, err);
    t->adapters = nmlp_arena_new(&t->arena, n, sizeof *t->adapters, err);
    t->rounded = nmlp_arena_new(&t->arena, n, sizeof *t->rounded, err);
    if (!t->trained || !t->best || !t->adapters || !t->rounded) return NMLP_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        nmlp_train_param *p = &params[i];
        if (!p->grad) continue;
        if (t->options.mode == NMLP_RECOVER_LORA && p->cols > 1) {
            if (nmlp_dtype_is_quantised(p->source.dtype))
                return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                                 "%s: tensor %s is quantised: its codes are trained themselves (`mode` factors)",
                                 t->model->checkpoint.dir, p->name);
            NMLP_RETURN_IF_FAILED(add_adapter(t, p, err));
        } else if (nmlp_dtype_is_quantised(p->source.dtype)) {
            nmlp_train_rounded *r = &t->rounded[t->n_rounded++];
            NMLP_RETURN_IF_FAILED(nmlp_train_rounded_init(r, p, &t->arena, err));
            NMLP_RETURN_IF_FAILED(add_trained(t, r->master, p->grad, p->rows * p->cols, err));
        } else {
            NMLP_RETURN_IF_FAILED(add_trained(t, p->data, p->grad, p->rows * p->cols, err));
        }
    }
    return NMLP_OK;
}

static nmlp_status open_matching(nmlp_trainer *t, nmlp_err *err) {
    const nmlp_config *c = &t->model->config;
    const nmlp_config *teacher = &t->options.teacher->config;
    size_t rows = (size_t)(t->micro * t->options.context);
    if (teacher->hidden != c->hidden || teacher->n_layers != c->n_layers)
        return nmlp_fail_field(err, NMLP_E_SHAPE, "match",
                               "needs models of one shape: the teacher has %lld layers of %lld, the model %lld of %lld",
                               (long long)teacher->n_layers, (long long)teacher->hidden, (long long)c->n_layers,
                               (long long)c->hidden);
    t->teacher_hidden = nmlp_arena_new(&t->arena, (size_t)c->n_layers + 1, sizeof *t->teacher_hidden, err);
    for (int64_t l = 0; t->teacher_hidden && l <= c->n_layers; l++) {
        t->teacher_hidden[l] = nmlp_arena_new(&t->arena, rows * (size_t)c->hidden, sizeof(float), err);
        if (!t->teacher_hidden[l]) return NMLP_E_NOMEM;
    }
    return t->teacher_hidden ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status open_teacher(nmlp_trainer *t, nmlp_err *err) {
    const nmlp_recover_options *o = &t->options;
    if (!o->teacher) return NMLP_OK;
    if (o->teacher->config.vocab != t->model->config.vocab)
        return nmlp_fail(err, NMLP_E_SHAPE, "the teacher %s has a vocabulary of %lld, the model %s one of %lld",
                         o->teacher->checkpoint.dir, (long long)o->teacher->config.vocab, t->model->checkpoint.dir,
                         (long long)t->model->config.vocab);
    /* Where the student's products are rounded to bf16, the teacher's may be as well. */
    bool tiles = strcmp(nmlp_train_net_exec(t->net)->products->name, "amx") == 0;
    nmlp_engine_options engine = {.isa = tiles ? "amx" : o->isa, .pool = o->pool};
    NMLP_RETURN_IF_FAILED(nmlp_engine_create(&t->teacher, o->teacher, &engine, err));
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&t->session, t->teacher, o->context, 0, false, err));
    t->teacher_rows = nmlp_arena_new(&t->arena, (size_t)(t->micro * o->context * o->teacher->config.hidden),
                                     sizeof *t->teacher_rows, err);
    if (!t->teacher_rows) return NMLP_E_NOMEM;
    return o->match > 0 ? open_matching(t, err) : NMLP_OK;
}

static nmlp_status open_author(nmlp_trainer *t, nmlp_err *err) {
    const nmlp_recover_options *o = &t->options;
    int64_t wanted = (int64_t)ceil((double)(o->steps * o->batch) * o->explore);
    nmlp_train_self_text a = {.model = o->teacher,
                              .window = o->context + 1,
                              .seed = o->seed,
                              .isa = o->isa,
                              .pool = o->pool,
                              .progress = o->progress};
    if (wanted == 0) return NMLP_OK;
    int64_t n_windows = nmlp_min(wanted, MOST_WRITTEN);
    int32_t *ids = nmlp_arena_new(&t->arena, (size_t)(n_windows * a.window), sizeof *ids, err);
    int64_t *first = nmlp_arena_new(&t->arena, (size_t)nmlp_group_size(o->group) + 1, sizeof *first, err);
    if (!ids || !first) return NMLP_E_NOMEM;
    for (int k = 0; k <= nmlp_group_size(o->group); k++) first[k] = nmlp_group_share(o->group, n_windows, k);
    a.first_window = first[nmlp_group_rank(o->group)];
    a.n_windows = first[nmlp_group_rank(o->group) + 1] - a.first_window;
    if (a.n_windows > 0) NMLP_RETURN_IF_FAILED(nmlp_train_self_text_write(&a, ids + a.first_window * a.window, err));
    NMLP_RETURN_IF_FAILED(nmlp_group_gather(o->group, ids, (size_t)a.window * sizeof *ids, first, err));
    t->corpus.written = ids;
    t->corpus.n_written = n_windows;
    t->corpus.explore = o->explore;
    return NMLP_OK;
}

static nmlp_status check_options(nmlp_trainer *t, const nmlp_kernels **kernels, nmlp_err *err) {
    nmlp_recover_options *o = &t->options;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select(kernels, cpu, o->isa, err)); /* refuses unknown names */
    int64_t most = t->model->config.max_positions;
    if (o->context == 0) o->context = most < 512 ? most : 512;
    if (o->rate == 0) o->rate = o->mode == NMLP_RECOVER_LORA ? 1e-3 : 3e-4;
    if (o->explore < 0) o->explore = o->teacher ? 1.0 / 3 : 0;
    if (o->context < 2 || o->context > most)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "context", "is %lld; it must be from 2 to the model's %lld",
                               (long long)o->context, (long long)most);
    const struct {
        const char *field;
        int64_t value, least, most;
    } counts[] = {{"steps", o->steps, 1, 1 << 24},           {"batch", o->batch, 1, 1 << 20},
                  {"eval_every", o->eval_every, 1, 1 << 24}, {"heldout", o->heldout, 1, 1 << 24},
                  {"warmup", o->warmup, 0, 1 << 24},         {"patience", o->patience, 0, 1 << 24},
                  {"lora_rank", o->lora_rank, 1, 1 << 20}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        NMLP_RETURN_IF_FAILED(nmlp_check_count(counts[i].field, counts[i].value, counts[i].least, counts[i].most, err));
    if (!(o->rate > 0)) return nmlp_fail_field(err, NMLP_E_ARG, "rate", "is %g; it must be above 0", o->rate);
    if (!(o->clip >= 0 && o->weight_decay >= 0 && o->match >= 0))
        return nmlp_fail(err, NMLP_E_ARG, "`clip`, `weight_decay` and `match` must not be below 0");
    if (!(o->explore >= 0 && o->explore <= 1) || (o->explore > 0 && !o->teacher))
        return nmlp_fail_field(err, NMLP_E_ARG, "explore",
                               "is %g; it must be from 0 to 1, and needs a teacher to write", o->explore);
    if (o->warmup >= o->steps) o->warmup = o->steps / 4;
    return NMLP_OK;
}

static nmlp_status check_ids(const nmlp_trainer *t, const int32_t *ids, int64_t n, nmlp_err *err) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->model->config.vocab)
            return nmlp_fail(err, NMLP_E_ARG, "token id %d is outside the model's vocabulary of %lld", ids[i],
                             (long long)t->model->config.vocab);
    return NMLP_OK;
}

nmlp_status nmlp_trainer_init(nmlp_trainer *t, const nmlp_model *model, const int32_t *ids, int64_t n_ids,
                              const nmlp_recover_options *options, nmlp_err *err) {
    *t = (nmlp_trainer){.model = model, .options = *options};
    nmlp_arena_init(&t->arena);
    const nmlp_kernels *kernels;
    NMLP_RETURN_IF_FAILED(check_options(t, &kernels, err));
    NMLP_RETURN_IF_FAILED(check_ids(t, ids, n_ids, err));
    const nmlp_recover_options *o = &t->options;
    t->micro = MICRO_TOKENS / o->context;
    t->micro = nmlp_min(t->micro, nmlp_group_share(o->group, o->batch, 1)); /* the largest share is the first */
    if (t->micro < 1) t->micro = 1;
    int64_t rows = t->micro * o->context;
    nmlp_train_net_options net = {.isa = o->isa, .pool = o->pool, .set = o->set, .t = o->context, .s = rows};
    NMLP_RETURN_IF_FAILED(nmlp_train_corpus_init(&t->corpus, ids, n_ids, o->context, o->heldout, o->seed, err));
    NMLP_RETURN_IF_FAILED(nmlp_train_net_create(&t->net, model, &net, err));
    NMLP_RETURN_IF_FAILED(collect_trained(t, err));
    NMLP_RETURN_IF_FAILED(open_teacher(t, err));
    NMLP_RETURN_IF_FAILED(open_author(t, err));
    size_t members = (size_t)nmlp_group_size(o->group);
    t->member_values = nmlp_arena_new(&t->arena, members, sizeof *t->member_values, err);
    t->member_first = nmlp_arena_new(&t->arena, members + 1, sizeof *t->member_first, err);
    if (!t->member_values || !t->member_first) return NMLP_E_NOMEM;
    for (size_t k = 0; k <= members; k++) t->member_first[k] = (int64_t)k;
    t->ids = nmlp_arena_new(&t->arena, (size_t)rows, sizeof *t->ids, err);
    t->targets = nmlp_arena_new(&t->arena, (size_t)rows, sizeof *t->targets, err);
    t->log = nmlp_arena_new(&t->arena, (size_t)o->steps + 1, sizeof *t->log, err);
    if (!t->ids || !t->targets || !t->log) return NMLP_E_NOMEM;
    return set_fingerprint(t, nmlp_kernels_name(kernels), n_ids, err);
}

void nmlp_trainer_fini(nmlp_trainer *t) {
    nmlp_session_destroy(t->session);
    nmlp_engine_destroy(t->teacher);
    nmlp_train_net_destroy(t->net);
    nmlp_train_corpus_fini(&t->corpus);
    nmlp_arena_fini(&t->arena);
}

/* ---- the teacher ---- */

struct row_sink {
    float *rows;
    int64_t hidden;
};

static void keep_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    const struct row_sink *sink = ctx;
    (void)session;
    memcpy(sink->rows + first * sink->hidden, rows, (size_t)(s * sink->hidden) * sizeof *rows);
}

/* Layer by layer, so that every layer's output can be kept. */
static nmlp_status run_teacher_layers(nmlp_trainer *t, int64_t n_sequences, nmlp_err *err) {
    const nmlp_config *c = &t->options.teacher->config;
    int64_t context = t->options.context;
    int64_t chunk = nmlp_session_chunk(t->session);
    for (int64_t i = 0; i < n_sequences; i++) {
        int64_t at = i * context * c->hidden;
        NMLP_RETURN_IF_FAILED(
            nmlp_session_embed(t->session, t->ids + i * context, context, t->teacher_hidden[0] + at, err));
        for (int64_t l = 0; l < c->n_layers; l++) {
            float *rows = t->teacher_hidden[l + 1] + at;
            memcpy(rows, t->teacher_hidden[l] + at, (size_t)(context * c->hidden) * sizeof *rows);
            for (int64_t first = 0; first < context; first += chunk) {
                int64_t n = context - first < chunk ? context - first : chunk;
                nmlp_session_run_layer(t->session, l, rows + first * c->hidden, first, n);
            }
        }
        nmlp_session_final_norm(t->session, t->teacher_hidden[c->n_layers] + at, context, t->teacher_rows + at);
    }
    return NMLP_OK;
}

/* Last hidden states of every sequence; logits are made of them a piece at a time. */
static nmlp_status run_teacher(nmlp_trainer *t, int64_t n_sequences, nmlp_err *err) {
    int64_t hidden = t->options.teacher->config.hidden;
    int64_t context = t->options.context;
    if (t->teacher_hidden) return run_teacher_layers(t, n_sequences, err);
    for (int64_t i = 0; i < n_sequences; i++) {
        struct row_sink sink = {.rows = t->teacher_rows + i * context * hidden, .hidden = hidden};
        nmlp_session_truncate(t->session, 0);
        NMLP_RETURN_IF_FAILED(nmlp_session_append(t->session, t->ids + i * context, context, keep_rows, &sink, err));
    }
    return NMLP_OK;
}

static void teacher_logits(void *ctx, int64_t first, int64_t n, float *logits) {
    nmlp_trainer *t = ctx;
    int64_t most = nmlp_session_chunk(t->session);
    const nmlp_config *c = &t->options.teacher->config;
    for (int64_t i = 0; i < n; i += most) {
        int64_t some = n - i < most ? n - i : most;
        nmlp_session_logits(t->session, t->teacher_rows + (first + i) * c->hidden, some, logits + i * c->vocab);
    }
}

/* ---- one step ---- */

static nmlp_status sum_of_members(nmlp_trainer *t, double *value, nmlp_err *err) {
    const nmlp_process_group *group = t->options.group;
    t->member_values[nmlp_group_rank(group)] = *value;
    NMLP_RETURN_IF_FAILED(nmlp_group_gather(group, t->member_values, sizeof *t->member_values, t->member_first, err));
    *value = 0;
    for (int k = 0; k < nmlp_group_size(group); k++) *value += t->member_values[k];
    return NMLP_OK;
}

static nmlp_status sum_gradients(nmlp_trainer *t, nmlp_err *err) {
    size_t n;
    nmlp_train_param *params = nmlp_train_net_params(t->net, &n);
    for (size_t i = 0; i < n; i++)
        if (params[i].grad)
            NMLP_RETURN_IF_FAILED(
                nmlp_group_sum_f32(t->options.group, params[i].grad, params[i].rows * params[i].cols, err));
    return NMLP_OK;
}

/* Gradients of this process's share of the batch, summed over its group; the loss of all of it. */
static nmlp_status accumulate(nmlp_trainer *t, double *loss, nmlp_err *err) {
    const nmlp_recover_options *o = &t->options;
    int64_t first = t->state.step * o->batch;
    int64_t begin = nmlp_group_share(o->group, o->batch, nmlp_group_rank(o->group));
    int64_t end = nmlp_group_share(o->group, o->batch, nmlp_group_rank(o->group) + 1);
    double sum = 0;
    nmlp_train_net_clear_grads(t->net);
    for (int64_t done = begin; done < end; done += t->micro) {
        int64_t n = nmlp_min(end - done, t->micro);
        for (int64_t i = 0; i < n; i++)
            nmlp_train_corpus_train(&t->corpus, first + done + i, t->ids + i * o->context, t->targets + i * o->context);
        if (t->session) NMLP_RETURN_IF_FAILED(run_teacher(t, n, err));
        nmlp_train_batch batch = {.ids = t->ids, .targets = t->targets, .s = n * o->context, .t = o->context};
        batch.scale = 1 / (double)(o->batch * o->context);
        batch.teacher = t->session ? teacher_logits : NULL;
        batch.ctx = t;
        batch.hidden = t->teacher_hidden;
        batch.match = o->match;
        sum += nmlp_train_net_loss(t->net, &batch).loss;
    }
    NMLP_RETURN_IF_FAILED(sum_of_members(t, &sum, err));
    *loss = sum / (double)(o->batch * o->context);
    return sum_gradients(t, err);
}

void nmlp_trainer_apply(nmlp_trainer *t) {
    for (size_t i = 0; i < t->n_adapters; i++) nmlp_train_adapter_apply(&t->adapters[i], nmlp_train_net_exec(t->net));
    for (size_t i = 0; i < t->n_rounded; i++) nmlp_train_rounded_apply(&t->rounded[i], t->options.pool);
}

nmlp_status nmlp_trainer_step(nmlp_trainer *t, nmlp_recover_step *line, nmlp_err *err) {
    const nmlp_recover_options *o = &t->options;
    nmlp_train_schedule schedule = {.peak = o->rate, .floor = o->rate_floor, .warmup = o->warmup, .steps = o->steps};
    nmlp_train_adamw adam = nmlp_train_adamw_defaults();
    double started = nmlp_clock_seconds();
    double scale = 1;
    adam.weight_decay = o->weight_decay;
    *line = (nmlp_recover_step){.step = t->state.step + 1, .heldout_ppl = NAN};
    line->tokens = line->step * o->batch * o->context;
    line->rate = nmlp_train_schedule_rate(&schedule, t->state.step);
    NMLP_RETURN_IF_FAILED(accumulate(t, &line->loss, err));
    for (size_t i = 0; i < t->n_adapters; i++)
        nmlp_train_adapter_backward(&t->adapters[i], nmlp_train_net_exec(t->net));
    NMLP_RETURN_IF_FAILED(nmlp_train_grad_norm(o->pool, t->trained, t->n_trained, &line->grad_norm, err));
    if (!isfinite(line->loss) || !isfinite(line->grad_norm))
        return nmlp_fail(err, NMLP_E_NUMERIC, "step %lld: the loss is %g and the gradient's norm %g",
                         (long long)line->step, line->loss, line->grad_norm);
    if (o->clip > 0 && line->grad_norm > o->clip) scale = o->clip / line->grad_norm;
    nmlp_train_adamw_update(&adam, o->pool, t->trained, t->n_trained, line->rate, line->step, scale);
    nmlp_trainer_apply(t);
    t->state.step++;
    t->run_tokens += o->batch * o->context;
    t->train_seconds += nmlp_clock_seconds() - started;
    return NMLP_OK;
}

nmlp_status nmlp_trainer_evaluate(nmlp_trainer *t, double *ppl, nmlp_err *err) {
    const nmlp_process_group *group = t->options.group;
    int64_t context = t->options.context;
    int64_t end = nmlp_group_share(group, t->corpus.n_heldout, nmlp_group_rank(group) + 1);
    double nll = 0;
    for (int64_t done = nmlp_group_share(group, t->corpus.n_heldout, nmlp_group_rank(group)); done < end;
         done += t->micro) {
        int64_t n = nmlp_min(end - done, t->micro);
        for (int64_t i = 0; i < n; i++)
            nmlp_train_corpus_heldout(&t->corpus, done + i, t->ids + i * context, t->targets + i * context);
        nmlp_train_batch batch = {.ids = t->ids, .targets = t->targets, .s = n * context, .t = context};
        nll += nmlp_train_net_loss(t->net, &batch).nll;
    }
    NMLP_RETURN_IF_FAILED(sum_of_members(t, &nll, err));
    *ppl = exp(nll / (double)(t->corpus.n_heldout * context));
    return NMLP_OK;
}

void nmlp_trainer_keep_best(nmlp_trainer *t) {
    for (size_t i = 0; i < t->n_trained; i++)
        memcpy(t->best[i], t->trained[i].data, (size_t)t->trained[i].n * sizeof(float));
}

void nmlp_trainer_use_best(nmlp_trainer *t) {
    for (size_t i = 0; i < t->n_trained; i++)
        memcpy(t->trained[i].data, t->best[i], (size_t)t->trained[i].n * sizeof(float));
    nmlp_trainer_apply(t);
}

void nmlp_trainer_round(nmlp_trainer *t) {
    size_t n;
    nmlp_train_param *params = nmlp_train_net_params(t->net, &n);
    for (size_t i = 0; i < n; i++) {
        nmlp_train_param *p = &params[i];
        /* Quantised ones are rounded after every step. */
        if (!p->grad || p->source.dtype == NMLP_DTYPE_F32 || nmlp_dtype_is_quantised(p->source.dtype)) continue;
        for (int64_t j = 0; j < p->rows * p->cols; j++) {
            uint16_t stored;
            nmlp_from_f32(&stored, p->source.dtype, &p->data[j], 1);
            nmlp_to_f32(&p->data[j], &stored, p->source.dtype, 1);
        }
    }
}
