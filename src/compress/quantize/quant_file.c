#include "compress/quantize/quant_file.h"

#include <string.h>

#include "tensor/quant.h"

enum { PLAIN = -1 };
static const char magic[] = "NMLPQNT4", formats_magic[] = "NMLPQPL4";

struct entry {
    int64_t same_as; /* PLAIN: not in the file; an earlier number: that one; its own: stored here */
    int64_t dtype, group, rows, cols;
    int64_t per_group; /* 1: zero points or multipliers [rows, groups] stand behind the scales */
};

static void describe(struct entry *entries, nmlp_view *const views[], int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const nmlp_view *v = views[i];
        entries[i] = (struct entry){.same_as = PLAIN};
        if (!v->data || !nmlp_dtype_is_quantised(v->dtype)) continue;
        entries[i] = (struct entry){.same_as = i,
                                    .dtype = v->dtype,
                                    .group = v->group,
                                    .rows = v->shape[0],
                                    .cols = v->shape[1],
                                    .per_group = v->per_group != NULL};
        for (int64_t k = i - 1; k >= 0; k--)
            if (views[k]->data == v->data) entries[i].same_as = k;
    }
}

static nmlp_status put_views(nmlp_work_writer *writer, const struct entry *entries, nmlp_view *const views[], int64_t n,
                             nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_put_padded(writer, entries, (size_t)n * sizeof *entries, err));
    for (int64_t i = 0; i < n; i++) {
        const nmlp_view *v = views[i];
        if (entries[i].same_as != i) continue;
        NMLP_RETURN_IF_FAILED(nmlp_work_writer_put_padded(writer, v->data, nmlp_view_bytes(v), err));
        NMLP_RETURN_IF_FAILED(nmlp_work_writer_put_padded(writer, v->scales, nmlp_quant_scale_bytes(v), err));
        if (v->per_group)
            NMLP_RETURN_IF_FAILED(
                nmlp_work_writer_put_padded(writer, v->per_group, nmlp_quant_per_group_bytes(v), err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_quant_file_write(const char *path, uint64_t fingerprint, nmlp_view *const views[], int64_t n,
                                  nmlp_err *err) {
    struct entry *entries = nmlp_mem_new((size_t)n, sizeof *entries, err);
    nmlp_work_writer writer;
    nmlp_status st = NMLP_OK;
    if (!entries) return NMLP_E_NOMEM;
    describe(entries, views, n);
    NMLP_TRY(nmlp_work_writer_open(&writer, path, magic, fingerprint, err));
    st = put_views(&writer, entries, views, n, err);
    if (st == NMLP_OK)
        st = nmlp_work_writer_commit(&writer, err);
    else
        nmlp_work_writer_abort(&writer);
out:
    nmlp_mem_free(entries);
    return st;
}

/* Of a type, a group and whether there are zero points. */
static bool format_fits(int64_t dtype, int64_t group, bool zeros) {
    if (dtype == NMLP_DTYPE_Q4) return group == 32 || group == 64;
    if (dtype < NMLP_DTYPE_F32 || dtype >= NMLP_DTYPES || zeros) return false;
    return group == (nmlp_quant_has_multipliers((nmlp_dtype)dtype) ? NMLP_QUANT_MULTIPLIER_GROUP : 0);
}

static bool entry_fits(const struct entry *e, const nmlp_view *view) {
    if (!view->data || view->n_dims != 2 || e->rows != view->shape[0] || e->cols != view->shape[1]) return false;
    bool q4 = e->dtype == NMLP_DTYPE_Q4;
    if ((e->per_group & ~INT64_C(1)) != 0 || !format_fits(e->dtype, e->group, q4 && e->per_group)) return false;
    if (!nmlp_dtype_is_quantised((nmlp_dtype)e->dtype)) return false;
    if (!q4 && e->per_group != nmlp_quant_has_multipliers((nmlp_dtype)e->dtype)) return false;
    return e->group == 0 || e->cols % e->group == 0;
}

static bool numbers_fit(const nmlp_view *view) {
    bool q4 = view->dtype == NMLP_DTYPE_Q4;
    int lowest = q4 ? -8 : nmlp_quant_multiplier_lowest(view->dtype);
    int highest = q4 ? 7 : nmlp_quant_multiplier_highest(view->dtype);
    for (size_t i = 0; i < nmlp_quant_per_group_bytes(view); i++)
        if (view->per_group[i] < lowest || view->per_group[i] > highest) return false;
    return true;
}

static bool read_views(nmlp_view *made, const nmlp_file_map *map, size_t payload_bytes, nmlp_view *const views[],
                       int64_t n) {
    nmlp_work_cursor cursor = {.at = map->data, .left_bytes = payload_bytes};
    const struct entry *entries = nmlp_work_take(&cursor, (size_t)n * sizeof *entries, true); /* aligned */
    if (!entries) return false;
    for (int64_t i = 0; i < n; i++) {
        const struct entry *e = &entries[i];
        made[i] = *views[i];
        if (e->same_as == PLAIN) continue;
        if (e->same_as < 0 || e->same_as > i || !entry_fits(e, views[i])) return false;
        if (e->same_as < i) {
            made[i] = made[e->same_as];
            continue;
        }
        made[i] = nmlp_view_2d(NULL, (nmlp_dtype)e->dtype, e->rows, e->cols);
        made[i].group = (int)e->group;
        made[i].data = nmlp_work_take(&cursor, nmlp_view_bytes(&made[i]), true);
        made[i].scales = nmlp_work_take(&cursor, nmlp_quant_scale_bytes(&made[i]), true);
        if (!e->per_group) continue;
        made[i].per_group = nmlp_work_take(&cursor, (size_t)(e->rows * nmlp_quant_groups(&made[i])), true);
        if (!made[i].per_group || !numbers_fit(&made[i])) return false;
    }
    return !cursor.failed && cursor.left_bytes == 0;
}

nmlp_status nmlp_quant_file_open(nmlp_file_map *map, const char *path, uint64_t fingerprint, nmlp_view *const views[],
                                 int64_t n, nmlp_work_state *state, nmlp_err *err) {
    size_t payload_bytes = 0;
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(map, path, magic, fingerprint, &payload_bytes, state, err));
    if (*state != NMLP_WORK_VALID) return NMLP_OK;
    nmlp_view *made = nmlp_mem_new((size_t)n, sizeof *made, err);
    bool good = made && read_views(made, map, payload_bytes, views, n);
    for (int64_t i = 0; good && i < n; i++) *views[i] = made[i];
    if (!good) {
        *state = NMLP_WORK_DAMAGED;
        nmlp_file_map_close(map);
    }
    nmlp_status st = made ? NMLP_OK : NMLP_E_NOMEM;
    nmlp_mem_free(made);
    return st;
}

/* ---- formats ---- */

struct format_entry {
    int64_t dtype, group, zeros;
};

static nmlp_status put_format(nmlp_work_writer *writer, const nmlp_quant_format *format, nmlp_err *err) {
    struct format_entry entry = {.dtype = format->dtype, .group = format->group, .zeros = format->zeros};
    return nmlp_work_writer_put(writer, &entry, sizeof entry, err);
}

nmlp_status nmlp_quant_formats_write(const char *path, uint64_t fingerprint, const nmlp_quant_format *formats,
                                     int64_t n, const nmlp_quant_format *head, nmlp_err *err) {
    nmlp_work_writer writer;
    nmlp_status st = NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, formats_magic, fingerprint, err));
    NMLP_TRY(put_format(&writer, head, err));
    for (int64_t i = 0; i < n; i++) NMLP_TRY(put_format(&writer, &formats[i], err));
    return nmlp_work_writer_commit(&writer, err);
out:
    nmlp_work_writer_abort(&writer);
    return st;
}

static bool take_format(nmlp_work_cursor *cursor, nmlp_quant_format *format) {
    struct format_entry entry;
    const void *at = nmlp_work_take(cursor, sizeof entry, false);
    if (!at) return false;
    memcpy(&entry, at, sizeof entry);
    bool fits = (entry.zeros & ~INT64_C(1)) == 0 && format_fits(entry.dtype, entry.group, entry.zeros != 0);
    if (fits)
        *format =
            (nmlp_quant_format){.dtype = (nmlp_dtype)entry.dtype, .group = (int)entry.group, .zeros = entry.zeros != 0};
    return fits;
}

/* Twice through: nothing is changed before all is known to be good. */
nmlp_status nmlp_quant_formats_read(const char *path, uint64_t fingerprint, nmlp_quant_format *formats, int64_t n,
                                    nmlp_quant_format *head, nmlp_work_state *state, nmlp_err *err) {
    nmlp_file_map map;
    size_t payload_bytes = 0;
    nmlp_quant_format first, each;
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&map, path, formats_magic, fingerprint, &payload_bytes, state, err));
    if (*state != NMLP_WORK_VALID) return NMLP_OK;
    nmlp_work_cursor begin = {.at = map.data, .left_bytes = payload_bytes}, cursor;
    bool good = take_format(&begin, &first);
    cursor = begin;
    for (int64_t i = 0; good && i < n; i++) good = take_format(&cursor, &each);
    good = good && cursor.left_bytes == 0;
    if (good) *head = first;
    for (int64_t i = 0; good && i < n; i++) (void)take_format(&begin, &formats[i]);
    nmlp_file_map_close(&map);
    if (!good) *state = NMLP_WORK_DAMAGED;
    return NMLP_OK;
}
