/* Rows of prompts beside decoding sequences, on devices whose time is a formula. */
#include "engine/prompt_pace.h"
#include "lib/testing.h"

/* Time of a step: as long as weights take to arrive, or as rows take to compute. */
struct device {
    double load_s, row_s;
};

static double step_seconds(const struct device *d, int64_t rows) {
    double compute = d->row_s * (double)rows;
    return compute > d->load_s ? compute : d->load_s;
}

/* A prompt comes while n sequences decode. The longest step, in steps without prompts; steps it took. */
static double longest_step(const struct device *d, int64_t n, int64_t prompt, int64_t *n_steps) {
    nmlp_prompt_pace pace = {0};
    double alone = step_seconds(d, n), worst = 0;
    for (int i = 0; i < 50; i++) nmlp_prompt_pace_note(&pace, n, 1, 0, alone);
    for (*n_steps = 0; prompt > 0; ++*n_steps) {
        int64_t rows = nmlp_prompt_pace_rows(&pace, n, 1);
        rows = rows < prompt ? rows : prompt;
        rows = rows < 512 - n ? rows : 512 - n;
        assert_true(rows > 0);
        double seconds = step_seconds(d, n + rows);
        nmlp_prompt_pace_note(&pace, n, 1, rows, seconds);
        worst = seconds / alone > worst ? seconds / alone : worst;
        prompt -= rows;
    }
    return worst;
}

static void long_prompt_keeps_steps_below_twice_their_time(void **state) {
    const struct device devices[] = {{1e-9, 1e-3}, {1e-2, 1e-3}, {1e-3, 1e-6}, {5e-3, 5e-4}};
    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        for (int64_t n = 1; n <= 64; n *= 2) {
            int64_t n_steps;
            double worst = longest_step(&devices[i], n, 4000, &n_steps);
            /* no fewer rows than four, and now and then some more to see what they cost, fit where a row costs as much
             * as a sequence */
            double bound = n >= 8 ? 2 : devices[i].load_s > 4 * devices[i].row_s ? 2.3 : 1 + 6.0 / (double)n;
            assert_true(worst <= bound + 1e-9);
            /* and time is used: at least a fifth of every step is the prompt's where rows cost time */
            double rows_per_step = 4000.0 / (double)n_steps, alone = step_seconds(&devices[i], n);
            double room = (1.2 * alone / devices[i].row_s) - (double)n;
            double fair = room < 400 ? room : 300;
            assert_true(rows_per_step >= fair || rows_per_step >= 4);
            if (devices[i].load_s < 1e-6) assert_true(rows_per_step >= 0.2 * (double)n);
        }
    }
}

static void no_limit_without_decoding_or_knowledge(void **state) {
    nmlp_prompt_pace pace = {0};
    (void)state;
    assert_int_equal(nmlp_prompt_pace_rows(&pace, 8, 1), INT64_MAX);
    nmlp_prompt_pace_note(&pace, 8, 1, 0, 0.01);
    assert_int_equal(nmlp_prompt_pace_rows(&pace, 0, 1), INT64_MAX);
    assert_true(nmlp_prompt_pace_rows(&pace, 8, 1) < 64);
}

static void rows_follow_the_time_of_steps(void **state) {
    nmlp_prompt_pace pace = {0};
    (void)state;
    for (int i = 0; i < 20; i++) nmlp_prompt_pace_note(&pace, 16, 1, 0, 0.010);
    for (int i = 0; i < 80; i++) { /* a step has 512 rows */
        int64_t rows = nmlp_prompt_pace_rows(&pace, 16, 1);
        nmlp_prompt_pace_note(&pace, 16, 1, rows < 496 ? rows : 496, 0.0101);
    }
    int64_t cheap = nmlp_prompt_pace_rows(&pace, 16, 1);
    assert_true(cheap > 390);                      /* rows that cost nothing grow */
    nmlp_prompt_pace_note(&pace, 16, 1, cheap, 1); /* one accident of the machine changes little, … */
    assert_true(nmlp_prompt_pace_rows(&pace, 16, 1) >= cheap / 2);
    nmlp_prompt_pace_note(&pace, 16, 1, 1, 0.0001); /* nor does the end of a prompt */
    assert_true(nmlp_prompt_pace_rows(&pace, 16, 1) <= 2 * cheap);
    for (int i = 0; i < 20; i++) {
        int64_t rows = nmlp_prompt_pace_rows(&pace, 16, 1);
        rows = rows < 496 ? rows : 496;
        nmlp_prompt_pace_note(&pace, 16, 1, rows, 0.010 + 1e-3 * (double)rows);
    }
    assert_in_range(nmlp_prompt_pace_rows(&pace, 16, 1), 4, 6); /* … a cost that stays sets the pace: half of 10 ms */
}

static void crowd_gets_under_way(void **state) {
    nmlp_prompt_pace pace = {0};
    (void)state;
    for (int i = 0; i < 20; i++) nmlp_prompt_pace_note(&pace, 4, 1, 0, 0.004);
    for (int i = 0; i < 20; i++) {
        int64_t rows = nmlp_prompt_pace_rows(&pace, 4, 1);
        nmlp_prompt_pace_note(&pace, 4, 1, rows, 0.004 + 1e-3 * (double)rows);
    }
    /* 28 prompts beside 4 sequences: most of the time is theirs; one beside 31: a small part */
    assert_true(nmlp_prompt_pace_rows(&pace, 4, 28) >= 100);
    assert_true(nmlp_prompt_pace_rows(&pace, 31, 1) <= 6);
}

/* Steps of noisy length: some take thrice as long as the others. */
static void accidents_do_not_set_the_pace(void **state) {
    nmlp_prompt_pace pace = {0};
    (void)state;
    for (int i = 0; i < 400; i++) nmlp_prompt_pace_note(&pace, 32, 1, 0, i % 8 == 0 ? 0.03 : 0.01);
    for (int i = 0; i < 40; i++) {
        int64_t rows = nmlp_prompt_pace_rows(&pace, 32, 1);
        nmlp_prompt_pace_note(&pace, 32, 1, rows, 0.01 + 1e-4 * (double)rows);
    }
    assert_in_range(nmlp_prompt_pace_rows(&pace, 32, 1), 30, 75);
}

/* What many rows of a crowd cost each says nothing about few of one prompt, nor one sequence about many. */
static void crowds_and_single_prompts_are_told_apart(void **state) {
    nmlp_prompt_pace pace = {0};
    (void)state;
    nmlp_prompt_pace_note(&pace, 1, 31, 0, 0.005);
    for (int i = 0; i < 10; i++) nmlp_prompt_pace_note(&pace, 4, 28, 1000, 0.105);
    for (int i = 0; i < 10; i++) nmlp_prompt_pace_note(&pace, 32, 0, 0, 0.02);
    assert_true(nmlp_prompt_pace_rows(&pace, 4, 28) > 400);
    assert_int_equal(nmlp_prompt_pace_rows(&pace, 32, 1), 16);
    assert_int_equal(nmlp_prompt_pace_rows(&pace, 1, 1), 4);
}

/* A prompt that costs time by being there, the more the longer it is: few rows would make its steps no shorter. */
static void what_rows_do_not_cost_is_not_saved_by_fewer_rows(void **state) {
    enum { PROMPT = 4000, SEQUENCES = 32 };
    nmlp_prompt_pace pace = {0};
    const double alone = 1.3e-3, fixed = 0.2e-3, longest = 1.5e-3, row = 7e-6;
    int n_steps = 0;
    (void)state;
    for (int i = 0; i < 60; i++) nmlp_prompt_pace_note(&pace, SEQUENCES, 0, 0, alone);
    for (int64_t done = 0; done < PROMPT; n_steps++) {
        int64_t rows = nmlp_prompt_pace_rows(&pace, SEQUENCES, 1);
        rows = rows < PROMPT - done ? rows : PROMPT - done;
        double added = fixed + longest * (double)done / PROMPT + row * (double)rows;
        nmlp_prompt_pace_note(&pace, SEQUENCES, 1, rows, alone + added);
        assert_true(added <= fixed + longest * (double)done / PROMPT + 0.6 * alone);
        done += rows;
    }
    assert_in_range(n_steps, 40, 250);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_prompt_keeps_steps_below_twice_their_time),
                                       cmocka_unit_test(no_limit_without_decoding_or_knowledge),
                                       cmocka_unit_test(rows_follow_the_time_of_steps),
                                       cmocka_unit_test(crowd_gets_under_way),
                                       cmocka_unit_test(accidents_do_not_set_the_pace),
                                       cmocka_unit_test(crowds_and_single_prompts_are_told_apart),
                                       cmocka_unit_test(what_rows_do_not_cost_is_not_saved_by_fewer_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
