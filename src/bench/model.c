/* Every round visits all models and lengths in turn, so that a slow moment of the machine hits all of them, and begins
 * with the next model, so that none has always the same one before it; all models decode as many tokens. Each sample
 * stands beside a probe of this CPU taken before and after it. Prefill counts the FLOPs of the weights (the
 * head once) and of causal attention, decode the bytes of the weights, read once per token. */
#include "bench/model.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/memory_limit.h"
#include "bench/energy.h"
#include "bench/limits.h"
#include "bench/model_work.h"
#include "engine/backend.h"
#include "engine/backend_shared.h"
#include "engine/split_choice.h"
#include "model/model_shard.h"

enum { DECODE_TOKENS_MIN = 16, DECODE_TOKENS_MAX = 256, DECODE_PROMPT = 16, PROMPT_MAX = 2048, PIECE_BYTES = 1 << 20 };
static const double DECODE_SECONDS = 0.25; /* of a sample, where so few tokens take that long */
static const int usual_prompts[NMLP_BENCH_PREFILLS] = {128, 512, 2048};

/* What is measured: a prompt of that many tokens, or `batch` sequences decoding together. */
struct task {
    int prompt;
    int batch;
};

struct subject {
    nmlp_model model;
    nmlp_model_shard *shard; /* what of it this process runs; NULL: all */
    nmlp_engine *engine;
    nmlp_batch *batch;
    int32_t sequences[NMLP_BENCH_BATCH_MAX];
    int64_t context;
    int decode_tokens[NMLP_BENCH_CASES_MAX]; /* of each sequence in a sample; 0 for prefills */
    float *logits;                           /* [largest batch, V] */
    nmlp_model_work work;
    nmlp_samples rate[NMLP_BENCH_CASES_MAX];  /* tokens/s */
    nmlp_samples share[NMLP_BENCH_CASES_MAX]; /* of the probe */
    nmlp_samples probe[NMLP_BENCH_CASES_MAX];
    nmlp_samples joules[NMLP_BENCH_CASES_MAX]; /* per token */
    nmlp_energy *energy;
    double sample_joules; /* of the last one, per token */
};

/* Once through the mapped files, a piece at a time, each given back before the next. */
static double time_to_read(const nmlp_checkpoint *checkpoint, char *piece) {
    double started = nmlp_clock_seconds();
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        const nmlp_file_map *map = &checkpoint->files[i].map;
        for (size_t at = 0; at < map->bytes; at += PIECE_BYTES) {
            size_t n = map->bytes - at < PIECE_BYTES ? map->bytes - at : PIECE_BYTES;
            memcpy(piece, map->data + at, n);
            nmlp_file_map_release(map->data + at, n);
        }
    }
    return nmlp_clock_seconds() - started;
}

static double peak_rss_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? 1024.0 * (double)usage.ru_maxrss : 0.0;
}

/* Room for the longest prompt, and for all sequences while they decode. */
static nmlp_status open_batch(struct subject *s, const nmlp_bench_model_options *o, nmlp_err *err) {
    int64_t most = 1;
    for (int i = 0; i < o->n_batches; i++)
        if (o->batches[i] > most) most = o->batches[i];
    s->context = s->model.config.max_positions < PROMPT_MAX ? s->model.config.max_positions : PROMPT_MAX;
    nmlp_batch_options batch = {.context = s->context, .max_sequences = most};
    if (most > 1) batch.positions = s->context + most * 2 * (DECODE_PROMPT + DECODE_TOKENS_MAX);
    NMLP_RETURN_IF_FAILED(nmlp_batch_create(&s->batch, s->engine, &batch, err));
    for (int i = 0; i < most; i++) NMLP_RETURN_IF_FAILED(nmlp_batch_open(s->batch, NULL, 0, &s->sequences[i], err));
    s->logits = nmlp_mem_new((size_t)(most * s->model.config.vocab), sizeof *s->logits, err);
    return s->logits ? NMLP_OK : NMLP_E_NOMEM;
}

/* Of a model that processes share: the first one leads. */
static nmlp_status take_part(struct subject *s, nmlp_engine_options *engine, const nmlp_bench_model_options *o,
                             nmlp_bench_model_result *r, nmlp_err *err) {
    const nmlp_process_group *group = o->tensor_group;
    nmlp_split_choice choice;
    nmlp_str text;
    if (!group) return NMLP_OK;
    if (engine->backend != nmlp_backend_cpu() || o->n_models != 1)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%d processes share one model on their CPUs", group->size);
    engine->tensor_group = group;
    if (nmlp_group_leads(group)) engine->backend = nmlp_backend_shared();
    nmlp_status st = nmlp_split_choose(&choice, &s->model, o->split, group, o->pool, err);
    if (st == NMLP_OK)
        st = nmlp_model_shard_create(&s->shard, &s->model, group->rank, group->size, choice.splits, o->pool, err);
    if (st == NMLP_OK) {
        nmlp_str_init(&text);
        nmlp_split_choice_text(&choice, s->model.config.n_layers, &text);
        snprintf(r->split, sizeof r->split, "%s", nmlp_str_text(&text));
        r->computed_ms = choice.token_ms;
        nmlp_str_fini(&text);
    }
    nmlp_split_choice_fini(&choice);
    return st;
}

static nmlp_status open_subject(struct subject *s, const char *dir, const nmlp_bench_model_options *o,
                                nmlp_bench_model_result *r, nmlp_err *err) {
    nmlp_engine_options engine = {.isa = o->isa, .pool = o->pool, .bf16 = o->bf16};
    NMLP_RETURN_IF_FAILED(nmlp_backend_choose(&engine.backend, o->device, o->isa, err));
    char *piece = nmlp_mem_new(1, PIECE_BYTES, err);
    if (!piece) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_model_open(&s->model, dir, err);
    if (st == NMLP_OK) r->read_seconds = time_to_read(&s->model.checkpoint, piece);
    nmlp_mem_free(piece);
    NMLP_RETURN_IF_FAILED(st);
    s->work = nmlp_model_work_of(&s->model);
    if (engine.backend == nmlp_backend_cpu())
        NMLP_RETURN_IF_FAILED(
            nmlp_memory_need((double)nmlp_model_measure(&s->model).bytes + (double)nmlp_limits_probe_bytes(), err));
    double started = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(take_part(s, &engine, o, r, err));
    NMLP_RETURN_IF_FAILED(nmlp_engine_create(&s->engine, s->shard ? &s->shard->model : &s->model, &engine, err));
    r->load_seconds = nmlp_clock_seconds() - started;
    if (!nmlp_group_leads(o->tensor_group)) return nmlp_engine_follow(s->engine, o->tensor_group, err);
    NMLP_RETURN_IF_FAILED(open_batch(s, o, err));
    r->dir = dir;
    snprintf(r->device, sizeof r->device, "%s", nmlp_engine_isa(s->engine));
    r->weight_bytes = (double)nmlp_model_measure(&s->model).bytes;
    r->cache_bytes = (double)nmlp_engine_cache_bytes(s->engine, s->context);
    return NMLP_OK;
}

static void close_subject(struct subject *s) {
    nmlp_mem_free(s->logits);
    nmlp_batch_destroy(s->batch);
    nmlp_engine_destroy(s->engine);
    nmlp_model_shard_destroy(s->shard);
    nmlp_model_close(&s->model);
}

static void fill_ids(int32_t *ids, int n, int64_t vocab) {
    for (int i = 0; i < n; i++) ids[i] = (int32_t)((i * 7919 + 13) % vocab);
}

static void forget(struct subject *s, int n_sequences) {
    for (int i = 0; i < n_sequences; i++) nmlp_batch_truncate(s->batch, s->sequences[i], 0);
}

/* Seconds per token. */
static nmlp_status time_prefill(struct subject *s, int n, double *seconds, nmlp_err *err) {
    int32_t ids[PROMPT_MAX];
    fill_ids(ids, n, s->model.config.vocab);
    forget(s, 1);
    double before = nmlp_energy_joules(s->energy), started = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(nmlp_batch_append(s->batch, s->sequences[0], ids, n, s->logits, NULL, err));
    *seconds = (nmlp_clock_seconds() - started) / n;
    s->sample_joules = (nmlp_energy_joules(s->energy) - before) / n;
    forget(s, 1);
    return NMLP_OK;
}

/* One step of all sequences, greedy as a generation makes it: the device chooses where it can. */
static nmlp_status step(struct subject *s, const nmlp_step_item *items, int32_t *ids, int n, int more, nmlp_err *err) {
    nmlp_choice_item choices[NMLP_BENCH_BATCH_MAX];
    int64_t vocab = s->model.config.vocab;
    NMLP_RETURN_IF_FAILED(nmlp_batch_step(s->batch, items, n, err));
    if (!items[0].choose) {
        for (int i = 0; i < n; i++) ids[i] = (int32_t)nmlp_argmax(items[i].logits, vocab);
        return NMLP_OK;
    }
    for (int i = 0; i < n; i++) choices[i] = (nmlp_choice_item){.sequence = items[i].sequence};
    NMLP_RETURN_IF_FAILED(nmlp_batch_choose(s->batch, choices, n, more, err));
    for (int i = 0; i < n; i++) ids[i] = choices[i].id;
    return NMLP_OK;
}

/* Seconds per token of n sequences together, each of which writes n_tokens. */
static nmlp_status time_decode(struct subject *s, int n, int n_tokens, double *seconds, nmlp_err *err) {
    int32_t prompt[DECODE_PROMPT], ids[NMLP_BENCH_BATCH_MAX];
    nmlp_step_item items[NMLP_BENCH_BATCH_MAX] = {0};
    nmlp_sampling greedy = nmlp_sampling_greedy();
    bool on_device = nmlp_batch_can_choose(s->batch, &greedy);
    forget(s, n);
    fill_ids(prompt, DECODE_PROMPT, s->model.config.vocab);
    for (int i = 0; i < n; i++) {
        prompt[0] = ids[i] = (int32_t)(i % s->model.config.vocab);
        items[i] = (nmlp_step_item){.sequence = s->sequences[i], .ids = &ids[i], .n = 1};
        if (on_device) {
            items[i].choose = &greedy;
        } else {
            items[i].n_logits = 1;
            items[i].logits = s->logits + i * s->model.config.vocab;
        }
        NMLP_RETURN_IF_FAILED(nmlp_batch_append(s->batch, s->sequences[i], prompt, DECODE_PROMPT, NULL, NULL, err));
    }
    double before = nmlp_energy_joules(s->energy), started = nmlp_clock_seconds();
    for (int t = 0; t < n_tokens; t++) NMLP_RETURN_IF_FAILED(step(s, items, ids, n, n_tokens - t - 1, err));
    *seconds = (nmlp_clock_seconds() - started) / n_tokens / n;
    s->sample_joules = (nmlp_energy_joules(s->energy) - before) / n_tokens / n;
    forget(s, n);
    return NMLP_OK;
}

/* NULL: no limits are known. */
static double read_limit(const nmlp_limits *limits, bool decode) {
    if (!limits) return 0;
    return decode ? nmlp_limits_gbs(limits) : nmlp_limits_gflops(limits);
}

/* GFLOP of a prefill or GB of a decode, per token. */
static double work_of(const struct subject *s, struct task task) {
    if (!task.prompt) return nmlp_model_work_step_gb(&s->work) / task.batch;
    return nmlp_model_work_prompt_gflop(&s->work, task.prompt);
}

static nmlp_status take_sample(struct subject *s, int which, struct task task, const nmlp_limits *limits,
                               nmlp_err *err) {
    bool decode = task.prompt == 0;
    double seconds = 0, before = read_limit(limits, decode);
    NMLP_RETURN_IF_FAILED(decode ? time_decode(s, task.batch, s->decode_tokens[which], &seconds, err)
                                 : time_prefill(s, task.prompt, &seconds, err));
    nmlp_samples_add(&s->rate[which], 1 / seconds);
    if (s->sample_joules > 0) nmlp_samples_add(&s->joules[which], s->sample_joules); /* NaN: there is none */
    if (!limits) return NMLP_OK;
    double limit = 0.5 * (before + read_limit(limits, decode));
    nmlp_samples_add(&s->share[which], work_of(s, task) / seconds / limit);
    nmlp_samples_add(&s->probe[which], limit);
    return NMLP_OK;
}

static int count_prompts(const nmlp_bench_model_options *o) { return o->prompts ? o->n_prompts : NMLP_BENCH_PREFILLS; }

static struct task task_at(const nmlp_bench_model_options *o, int which) {
    int n = count_prompts(o);
    const int *prompts = o->prompts ? o->prompts : usual_prompts;
    if (which < n) return (struct task){.prompt = prompts[which], .batch = 1};
    return (struct task){.batch = (int)o->batches[which - n]};
}

static nmlp_status measure(struct subject *subjects, const nmlp_limits *limits, const nmlp_bench_model_options *o,
                           nmlp_err *err) {
    for (int round = 0; round < o->rounds; round++)
        for (int which = 0; which < count_prompts(o) + o->n_batches; which++)
            for (int at = 0; at < o->n_models; at++) {
                struct task task = task_at(o, which);
                int i = (at + round) % o->n_models;
                if (task.prompt > subjects[i].context) continue;
                NMLP_RETURN_IF_FAILED(take_sample(&subjects[i], which, task, limits, err));
            }
    return NMLP_OK;
}

static nmlp_bench_model_case case_of(const struct subject *s, const struct subject *first, int which,
                                     struct task task) {
    nmlp_samples ratios = {.n = 0};
    for (int i = 0; i < s->rate[which].n && i < first->rate[which].n; i++)
        nmlp_samples_add(&ratios, s->rate[which].x[i] / first->rate[which].x[i]);
    return (nmlp_bench_model_case){.prompt = task.prompt,
                                   .batch = task.batch,
                                   .tokens_s = nmlp_samples_spread(&s->rate[which]),
                                   .share = nmlp_samples_spread(&s->share[which]),
                                   .joules = s->joules[which].n ? nmlp_samples_quantile(&s->joules[which], 0.5) : 0,
                                   .probe = nmlp_samples_quantile(&s->probe[which], 0.5),
                                   .speedup = nmlp_samples_quantile(&ratios, 0.5),
                                   .ideal_speedup = work_of(first, task) / work_of(s, task)};
}

/* Tokens that each of `batch` sequences writes in a sample. */
static nmlp_status count_tokens(struct subject *s, const nmlp_bench_model_options *o, int batch, int *n_tokens,
                                nmlp_err *err) {
    double seconds, wanted = o->decode_seconds > 0 ? o->decode_seconds : DECODE_SECONDS;
    int room = (int)s->context - DECODE_PROMPT, most = room < DECODE_TOKENS_MAX ? room : DECODE_TOKENS_MAX;
    int together = o->decode_seconds > 0 ? batch : 1;
    NMLP_RETURN_IF_FAILED(time_decode(s, together, DECODE_TOKENS_MIN, &seconds, err));
    wanted /= seconds * together;
    *n_tokens = wanted <= DECODE_TOKENS_MIN ? DECODE_TOKENS_MIN : wanted < most ? (int)wanted : most;
    return NMLP_OK;
}

/* The first model has had a run of each kind before the probe's memory and the other models are there. How long its
 * tokens take says how many make a sample. */
static nmlp_status warm_up(struct subject *s, const struct subject *first, const nmlp_bench_model_options *o,
                           nmlp_bench_model_result *r, nmlp_err *err) {
    double seconds;
    int prompt = s->context < usual_prompts[1] ? DECODE_PROMPT : usual_prompts[1];
    NMLP_RETURN_IF_FAILED(time_prefill(s, prompt, &seconds, err));
    for (int which = count_prompts(o); which < count_prompts(o) + o->n_batches; which++) {
        NMLP_RETURN_IF_FAILED(count_tokens(s, o, task_at(o, which).batch, &s->decode_tokens[which], err));
        int room = (int)s->context - DECODE_PROMPT;
        s->decode_tokens[which] = first->decode_tokens[which] < room ? first->decode_tokens[which] : room;
    }
    r->rss_bytes = peak_rss_bytes();
    return NMLP_OK;
}

nmlp_status nmlp_bench_model_run(nmlp_bench_model_result results[], const nmlp_bench_model_options *o, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_limits limits = {0};
    nmlp_energy energy;
    struct subject *subjects = nmlp_mem_new((size_t)o->n_models, sizeof *subjects, err);
    if (!subjects) return NMLP_E_NOMEM;
    nmlp_energy_open(&energy, "/sys/class/powercap", false);
    for (int i = 0; i < o->n_models; i++) {
        results[i] = (nmlp_bench_model_result){0};
        subjects[i].energy = &energy;
        NMLP_TRY(open_subject(&subjects[i], o->dirs[i], o, &results[i], err));
        if (nmlp_group_leads(o->tensor_group)) NMLP_TRY(warm_up(&subjects[i], &subjects[0], o, &results[i], err));
    }
    if (!nmlp_group_leads(o->tensor_group)) goto out; /* it has followed, and ended */
    bool here = o->tensor_group || nmlp_engine_backend(subjects[0].engine) == nmlp_backend_cpu();
    bool limited = here && !o->rates_only;
    if (limited) {
        NMLP_TRY(nmlp_limits_open(&limits, subjects[0].engine, o->pool, o->bf16, err));
    } else if (!here) {
        nmlp_energy_close(&energy);
        nmlp_energy_open(&energy, NULL, true);
    }
    NMLP_TRY(measure(subjects, limited ? &limits : NULL, o, err));
    for (int i = 0; i < o->n_models; i++) {
        results[i].n_cases = count_prompts(o) + o->n_batches;
        for (int which = 0; which < results[i].n_cases; which++)
            results[i].cases[which] = case_of(&subjects[i], &subjects[0], which, task_at(o, which));
    }
out:
    for (int i = 0; i < o->n_models; i++) close_subject(&subjects[i]);
    nmlp_limits_close(&limits);
    nmlp_energy_close(&energy);
    nmlp_mem_free(subjects);
    return st;
}
