#include "lib/small_vocab.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "engine/session.h"
#include "lib/testing.h"

enum { N_IDS = 40 };

void small_vocab_random_ids(int32_t *ids, int64_t n, uint64_t seed) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, seed);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(nmlp_rng_next(&rng) % SMALL_VOCAB);
}

void small_vocab_last_logits(const char *dir, float logits[SMALL_VOCAB]) {
    int32_t ids[N_IDS];
    nmlp_model model;
    nmlp_engine *engine;
    nmlp_session *session;
    nmlp_engine_options options = {0};
    nmlp_err err;
    small_vocab_random_ids(ids, N_IDS, 2);
    nmlp_assert_ok(nmlp_model_open(&model, dir, &err), &err);
    nmlp_assert_ok(nmlp_engine_create(&engine, &model, &options, &err), &err);
    nmlp_assert_ok(nmlp_session_create(&session, engine, N_IDS, 0, false, &err), &err);
    nmlp_assert_ok(nmlp_session_append(session, ids, N_IDS, NULL, NULL, &err), &err);
    memcpy(logits, nmlp_session_last_logits(session), SMALL_VOCAB * sizeof *logits);
    nmlp_session_destroy(session);
    nmlp_engine_destroy(engine);
    nmlp_model_close(&model);
}

double small_vocab_distance(const float a[SMALL_VOCAB], const float b[SMALL_VOCAB]) {
    double sum = 0, size = 0;
    for (int i = 0; i < SMALL_VOCAB; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)a[i] * (double)a[i];
    }
    return sqrt(sum / size);
}
