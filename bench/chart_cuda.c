/* Draws what bench_cuda and peer_torch_mlp.py measured, up to 32 rows: chart_cuda OURS.csv PYTORCH.csv >FILE.svg */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/chart.h"

enum { CASES_MAX = 16, LINE_MAX_BYTES = 512, NAME_MAX_BYTES = 40, N_ROWS = 3 };
static const int rows_shown[N_ROWS] = {1, 8, 32};

/* One shape: the best of our paths and PyTorch's chain, by number of rows. */
struct shape {
    char name[NAME_MAX_BYTES]; /* size of the model and what was removed */
    double us[2][N_ROWS];
};

struct shapes {
    struct shape at[CASES_MAX];
    size_t n;
};

static struct shape *find(struct shapes *shapes, const char *name) {
    for (size_t i = 0; i < shapes->n; i++)
        if (strcmp(shapes->at[i].name, name) == 0) return &shapes->at[i];
    if (shapes->n == CASES_MAX) return NULL;
    struct shape *shape = &shapes->at[shapes->n++];
    snprintf(shape->name, sizeof shape->name, "%s", name);
    return shape;
}

static void keep_least(double *best, double us) {
    if (*best == 0 || us < *best) *best = us;
}

/* A line begins with model,ratio,rank,rows; the time is in field `field` (from 0). Other lines are headings. */
static void take_line(struct shapes *shapes, char *line, int side, int field) {
    char *fields[8] = {0};
    int n = 0;
    for (char *at = strtok(line, ",\n"); at && n < 8; at = strtok(NULL, ",\n")) fields[n++] = at;
    if (n <= field || atof(fields[field]) <= 0) return;
    char name[NAME_MAX_BYTES];
    const char *size = strrchr(fields[0], '-'); /* of llama-3.2-1b: there is room for no more */
    snprintf(name, sizeof name, "%.24s %.8s", size ? size + 1 : fields[0],
             strcmp(fields[1], "0.0") == 0 ? "dense" : fields[1]);
    struct shape *shape = find(shapes, name);
    for (int i = 0; shape && i < N_ROWS; i++)
        if (atoi(fields[3]) == rows_shown[i]) keep_least(&shape->us[side][i], atof(fields[field]));
}

static int read_csv(struct shapes *shapes, const char *path, int side, int field) {
    char line[LINE_MAX_BYTES];
    FILE *csv = fopen(path, "r");
    if (!csv) {
        fprintf(stderr, "chart_cuda: %s cannot be read\n", path);
        return 1;
    }
    while (fgets(line, sizeof line, csv)) take_line(shapes, line, side, field);
    fclose(csv);
    return 0;
}

static void draw(const struct shapes *shapes) {
    static const char *const series[] = {"ours, best path", "PyTorch, CUDA graph of matmuls"};
    const char *categories[CASES_MAX];
    double values[N_ROWS][2 * CASES_MAX];
    char titles[N_ROWS][64];
    nmlp_chart charts[N_ROWS];
    nmlp_str text;
    for (size_t i = 0; i < shapes->n; i++) categories[i] = shapes->at[i].name;
    for (int r = 0; r < N_ROWS; r++) {
        for (int side = 0; side < 2; side++)
            for (size_t i = 0; i < shapes->n; i++) values[r][(size_t)side * shapes->n + i] = shapes->at[i].us[side][r];
        snprintf(titles[r], sizeof titles[r], "Gated MLP on a GPU, %d row%s", rows_shown[r],
                 rows_shown[r] == 1 ? "" : "s");
        charts[r] = (nmlp_chart){.title = titles[r],
                                 .subtitle = "Llama-3.2-1B, Qwen3-4B and Llama-3.1-8B shapes, dense and by fraction "
                                             "removed; bf16, weights from memory",
                                 .y_label = "us",
                                 .categories = categories,
                                 .n_categories = shapes->n,
                                 .series = series,
                                 .n_series = 2,
                                 .values = values[r],
                                 .from_zero = true};
    }
    nmlp_str_init(&text);
    nmlp_chart_write_file(charts, N_ROWS, &text);
    printf("%s", nmlp_str_text(&text));
    nmlp_str_fini(&text);
}

int main(int argc, char **argv) {
    enum { OUR_FIELD = 5, TORCH_FIELD = 4 };
    struct shapes shapes = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: chart_cuda OURS.csv PYTORCH.csv >FILE.svg\n");
        return 2;
    }
    if (read_csv(&shapes, argv[1], 0, OUR_FIELD) || read_csv(&shapes, argv[2], 1, TORCH_FIELD)) return 1;
    draw(&shapes);
    return 0;
}
