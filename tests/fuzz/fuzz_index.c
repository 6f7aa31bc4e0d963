/* An index beside two weight files with tensors of any names, types and shapes, quantised ones in parts too: opening
 * the checkpoint never crashes, never looks outside of its folder, and finds what it has.
 *
 * First byte: 1 the configuration allows quantised weights, 2 a single file instead of the index, 4 no file at all.
 * Then the index (two bytes of length, then its text), then four bytes for each tensor: name (from 128 on in the second
 * file), type, rows and columns, value. */
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "fuzz/small_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { QUANTISED = 1, SINGLE = 2, EMPTY = 4, ENTRY_BYTES = 4, TENSORS_MAX = 24 };

static const char index_name[] = "model.safetensors.index.json", single_name[] = "model.safetensors";

static void write_config(bool quantised) {
    static const char scheme[] =
        ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\","
        "\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8}}}}}";
    nmlp_config config = small_config();
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_config_write(&config, NULL, NULL, 0, &text);
    while (text.len && text.data[text.len - 1] != '}') text.len--;
    if (quantised) text.len--;
    if (quantised) nmlp_str_append(&text, scheme, sizeof scheme - 1);
    (void)in_memory_file("config.json", text.data, text.len);
    nmlp_str_fini(&text);
}

/* Appends the values of a tensor: words of `value`, or the rows and columns it stands for. */
static void put_values(nmlp_str *out, size_t bytes, uint8_t value, bool is_shape, size_t word_bytes) {
    for (size_t i = 0; i < bytes; i++) {
        uint8_t size = (uint8_t)(1 << (value >> (i < word_bytes ? 0 : 4) & 7));
        nmlp_str_putc(out, (char)(!is_shape ? value : i % word_bytes == 0 ? size : 0));
    }
}

/* Tensors of one file, of which each name may be there again. */
static void write_weights(const char *file, const uint8_t *entries, size_t n, bool second) {
    static const char *const names[] = {"a", "a_scale", "a_packed", "a_shape",     "a_zero_point",
                                        "b", "b_scale", "b_packed", "b_zero_point"};
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2}, {"I8", 1}, {"F8_E4M3", 1}, {"I32", 4}, {"I64", 8}, {"U8", 1}};
    nmlp_str header, values, whole;
    nmlp_str_init(&header);
    nmlp_str_init(&values);
    nmlp_str_init(&whole);
    for (size_t i = 0; i < n && i < TENSORS_MAX; i++, entries += ENTRY_BYTES) {
        if ((entries[0] >= 128) != second) continue;
        const char *name = names[(entries[0] & 127) % (sizeof names / sizeof names[0])];
        size_t type = entries[1] % 8, rows = (size_t)1 << (entries[2] & 7), cols = (size_t)1 << (entries[2] >> 4 & 7);
        bool vector = entries[2] & 8, is_shape = strstr(name, "_shape");
        size_t bytes = rows * (vector ? 1 : cols) * types[type].bytes;
        char shape[48];
        snprintf(shape, sizeof shape, vector ? "%zu" : "%zu,%zu", rows, cols);
        nmlp_str_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                        header.len ? "," : "{", name, types[type].name, shape, values.len, values.len + bytes);
        put_values(&values, bytes, entries[3], is_shape, types[type].bytes);
    }
    nmlp_str_puts(&header, header.len ? "}" : "{}");
    while (header.len % 8) nmlp_str_putc(&header, ' ');
    for (int i = 0; i < 8; i++) nmlp_str_putc(&whole, (char)(header.len >> (8 * i)));
    nmlp_str_append(&whole, nmlp_str_text(&header), header.len);
    nmlp_str_append(&whole, nmlp_str_text(&values), values.len);
    (void)in_memory_file(file, nmlp_str_text(&whole), whole.len);
    nmlp_str_fini(&whole);
    nmlp_str_fini(&values);
    nmlp_str_fini(&header);
}

static void remove_file(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", in_memory_dir(), name);
    (void)unlink(path);
}

/* Returns whether it opens. */
static bool try(int flags, const uint8_t *index, size_t index_bytes, const uint8_t *entries, size_t n) {
    nmlp_checkpoint checkpoint;
    nmlp_err err = {0};
    bool single = flags & SINGLE;
    write_config(flags & QUANTISED);
    write_weights(single ? single_name : "part.safetensors", entries, n, false);
    write_weights("more.safetensors", entries, n, true);
    (void)in_memory_file(index_name, index, index_bytes);
    if (!single) remove_file(single_name);
    if (flags & EMPTY) remove_file(single_name), remove_file(index_name);
    if (nmlp_checkpoint_open(&checkpoint, in_memory_dir(), &err) != NMLP_OK) {
        if (!err.message[0]) abort();
        return false;
    }
    for (size_t i = 0; i < checkpoint.n_tensors; i++)
        if (!nmlp_checkpoint_find(&checkpoint, checkpoint.tensors[i].name)) abort();
    nmlp_checkpoint_close(&checkpoint);
    return true;
}

/* What is right opens: others are not refused for something else. */
static void check_good(void) {
    static const char good[] = "{\"weight_map\":{\"a\":\"part.safetensors\",\"b\":\"more.safetensors\"}}";
    static const uint8_t plain[] = {0, 0, 0x11, 0, 128 + 5, 1, 0x08, 0};
    static const uint8_t q8[] = {0, 3, 0x22, 1, 1, 0, 0x0a, 0};
    static const uint8_t q4[] = {2, 5, 0x32, 1, 3, 6, 0x09, 0x62, 1, 2, 0x12, 0, 4, 3, 0x12, 1};
    if (!try(0, (const uint8_t *)good, sizeof good - 1, plain, sizeof plain / ENTRY_BYTES) ||
        !try(QUANTISED | SINGLE, NULL, 0, q8, sizeof q8 / ENTRY_BYTES) ||
        !try(QUANTISED | SINGLE, NULL, 0, q4, sizeof q4 / ENTRY_BYTES))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool checked;
    if (!checked) check_good();
    checked = true;
    if (size < 3) return 0;
    size_t len = first_part(data + 1, size - 1);
    (void)try(data[0], data + 3, len, data + 3 + len, (size - 3 - len) / ENTRY_BYTES);
    return 0;
}
