#include "engine/prompt_pace.h"

#include <stdbool.h>

#include "base/ints.h"

enum { ROWS_MIN = 4, ROWS_MAX = 1 << 20 };

/* What a step with a prompt takes beyond one without, as part of the latter. A gap of twice the usual one is the bar;
 * the rest is for steps that take longer than those before. */
static const double extra = 0.5;
/* What rows take at least, whatever else the prompt costs: fewer rows would make more such steps, and none shorter. */
static const double extra_of_rows = 0.2;
/* What each further prompt that waits may take, over the sequences that decode. */
static const double extra_of_a_crowd = 4;
/* A step that takes so many times what was expected of it. */
static const double surprise = 1.2;
/* Rows of one prompt grow by this factor at most: behind a few more they may cost more each. */
static const double growth = 1.25;
/* How far the rows of steps by turns are from their mean. */
static const double turn_part = 0.2;
/* A time far from those before is rather an accident of the machine: estimates change by this factor at most, and so
 * does the number of rows. */
static const double trust = 1.5;

/* Half a row for each sequence: where time grows with rows, half a step more. */
static int64_t first_rows(int64_t n_decoding) { return nmlp_max(ROWS_MIN, n_decoding / 2); }

static double between(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

/* ---- steps without prompts ---- */

static int size_of(int64_t n_decoding) {
    int size = 0;
    while (size + 1 < NMLP_PACE_SIZES && (int64_t)1 << size < n_decoding) size++;
    return size;
}

/* The time of the nearest number of sequences that has been seen. */
static double decode_seconds(const nmlp_prompt_pace *pace, int64_t n_decoding) {
    int size = size_of(n_decoding);
    for (int away = 0; away < NMLP_PACE_SIZES; away++) {
        if (size + away < NMLP_PACE_SIZES && pace->decode_s[size + away] > 0) return pace->decode_s[size + away];
        if (size - away >= 0 && pace->decode_s[size - away] > 0) return pace->decode_s[size - away];
    }
    return 0;
}

/* Most steps take the same time and a few much longer: what is far above moves the estimate little. */
static void note_decode(double *estimate, double seconds) {
    if (*estimate == 0) *estimate = seconds;
    *estimate += 0.2 * between(seconds - *estimate, -0.5 * *estimate, 0.2 * *estimate);
}

/* ---- steps with prompts ---- */

/* The more prompts wait, the more of the time is theirs. */
static int64_t crowd_rows(const nmlp_prompt_pace *pace, double decode_s, int64_t n_decoding, int64_t n_prompts) {
    double share = extra + extra_of_a_crowd * (double)(n_prompts - 1) / (double)n_decoding;
    double row_s = pace->crowd_row_s > 0 ? pace->crowd_row_s : pace->single.row_s;
    if (row_s == 0) return (int64_t)((double)first_rows(n_decoding) * share / extra);
    double rows = share * decode_s / row_s;
    return rows > ROWS_MAX ? ROWS_MAX : nmlp_max(ROWS_MIN, (int64_t)rows);
}

int64_t nmlp_prompt_pace_rows(const nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts) {
    double decode_s = decode_seconds(pace, n_decoding);
    const nmlp_pace_cost *cost = &pace->single;
    if (n_decoding == 0 || decode_s == 0) return INT64_MAX;
    if (n_prompts > 1) return crowd_rows(pace, decode_s, n_decoding, n_prompts);
    if (cost->row_s == 0) return first_rows(n_decoding);
    double seconds = between(extra * decode_s - cost->fixed_s, extra_of_rows * decode_s, extra * decode_s);
    double rows =
        between(seconds / cost->row_s, 0, growth * (cost->rows[0] > cost->rows[1] ? cost->rows[0] : cost->rows[1]));
    return nmlp_max(ROWS_MIN, (int64_t)(rows * (cost->turn ? 1 + turn_part : 1 - turn_part)));
}

static void note_single(nmlp_pace_cost *c, double rows, double seconds) {
    int turn = c->turn;
    c->turn = !turn;
    if (c->row_s == 0) {
        *c = (nmlp_pace_cost){.row_s = seconds / rows, .rows = {rows, rows}, .seconds = {seconds, seconds}};
        return;
    }
    double excess = seconds - surprise * (c->fixed_s + c->row_s * rows);
    if (excess > 0) { /* rows cost more from some number on: believed at once, but half, since it may be an accident */
        c->row_s += 0.5 * between(excess / rows, 0, 2 * c->row_s);
        c->rows[turn] = rows;
        c->seconds[turn] = c->fixed_s + c->row_s * rows;
        return;
    }
    if (rows < 0.5 * c->rows[turn]) seconds = rows * c->seconds[turn] / c->rows[turn]; /* the rest of a prompt */
    c->seconds[turn] +=
        0.25 * (between(seconds, c->seconds[turn] / trust, c->seconds[turn] * trust) - c->seconds[turn]);
    c->rows[turn] += 0.25 * (rows - c->rows[turn]);
    double apart = c->rows[1] - c->rows[0], mean_rows = 0.5 * (c->rows[0] + c->rows[1]);
    double mean_s = 0.5 * (c->seconds[0] + c->seconds[1]), slope = c->row_s;
    if (apart > 0.1 * mean_rows)
        slope += 0.3 * ((c->seconds[1] - c->seconds[0]) / apart - slope);
    else
        slope *= 0.9; /* too few rows to tell: some more will */
    c->row_s = between(slope, 0.1 * mean_s / mean_rows, mean_s / mean_rows);
    c->fixed_s = mean_s - c->row_s * mean_rows;
}

static void note_crowd(double *row_s, double seen) {
    *row_s = *row_s > 0 ? between(seen, *row_s / trust, *row_s * trust) : seen;
}

void nmlp_prompt_pace_note(nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts, int64_t n_prompt_rows,
                           double seconds) {
    double decode_s = decode_seconds(pace, n_decoding);
    if (n_decoding == 0) return;
    if (n_prompt_rows == 0) {
        note_decode(&pace->decode_s[size_of(n_decoding)], seconds);
    } else if (decode_s > 0) {
        double rows = (double)n_prompt_rows, added = seconds - decode_s;
        double least = 0.1 * extra * decode_s; /* less cannot be told from nothing */
        if (added < least) added = least;
        if (n_prompts > 1)
            note_crowd(&pace->crowd_row_s, added / rows);
        else
            note_single(&pace->single, rows, added);
    }
}
