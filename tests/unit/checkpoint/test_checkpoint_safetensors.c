/* safetensors headers: what is believed and what is refused. */
#include "checkpoint/safetensors.h"
#include "lib/testing.h"

enum { FILE_MAX = 4096 };

/* A file image: length prefix, header text, payload of `payload_bytes` zeros. The buffer is aligned as a map is. */
struct image {
    _Alignas(64) unsigned char bytes[FILE_MAX];
    size_t len;
};

static void build(struct image *image, const char *header, size_t payload_bytes) {
    size_t len = strlen(header);
    size_t padded = (len + 7) / 8 * 8; /* as writers do, so that data is aligned */
    *image = (struct image){0};
    for (int i = 0; i < 8; i++) image->bytes[i] = (unsigned char)(padded >> (8 * i));
    memset(image->bytes + 8, ' ', padded);
    memcpy(image->bytes + 8, header, len);
    image->len = 8 + padded + payload_bytes;
}

static void refuse(const char *header, size_t payload_bytes, nmlp_status code, const char *part) {
    struct image image;
    nmlp_safetensors file;
    nmlp_err err;
    build(&image, header, payload_bytes);
    nmlp_assert_fails(nmlp_safetensors_parse(&file, image.bytes, image.len, "f", &err), &err, code, "f: ", part, NULL);
}

static void a_sound_file_gives_views(void **state) {
    struct image image;
    nmlp_safetensors file;
    nmlp_err err;
    (void)state;
    build(&image,
          "{\"__metadata__\":{\"format\":\"pt\"},"
          "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},"
          "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
          30);
    nmlp_assert_ok(nmlp_safetensors_parse(&file, image.bytes, image.len, "f", &err), &err);
    assert_int_equal(file.n_tensors, 2);
    assert_string_equal(file.tensors[0].name, "a"); /* in file order */
    assert_int_equal(file.tensors[0].view.shape[1], 3);
    assert_int_equal(
        (const unsigned char *)file.tensors[1].view.data - (const unsigned char *)file.tensors[0].view.data, 24);
    nmlp_safetensors_close(&file);
}

static void empty_and_truncated_files_are_refused(void **state) {
    struct image image;
    nmlp_safetensors file;
    nmlp_err err;
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";
    (void)state;
    build(&image, header, 24);
    size_t full = image.len;
    for (size_t len = 0; len < full; len++) {
        nmlp_status st = nmlp_safetensors_parse(&file, image.bytes, len, "f", &err);
        assert_int_equal(st, NMLP_E_FORMAT);
    }
    nmlp_assert_fails(nmlp_safetensors_parse(&file, image.bytes, 0, "f", &err), &err, NMLP_E_FORMAT, "empty", NULL);
    nmlp_assert_fails(nmlp_safetensors_parse(&file, image.bytes, full - 1, "f", &err), &err, NMLP_E_FORMAT, "tensor a",
                      "truncated", NULL);
}

static void a_header_past_the_end_is_refused(void **state) {
    struct image image;
    nmlp_safetensors file;
    nmlp_err err;
    (void)state;
    build(&image, "{}", 0);
    image.bytes[0] = 200;
    nmlp_assert_fails(nmlp_safetensors_parse(&file, image.bytes, image.len, "f", &err), &err, NMLP_E_FORMAT, "200",
                      "past the end", NULL);
    memset(image.bytes, 0xff, 8);
    nmlp_assert_fails(nmlp_safetensors_parse(&file, image.bytes, image.len, "f", &err), &err, NMLP_E_FORMAT, "limit",
                      NULL);
}

static void overlaps_and_ranges_are_refused(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],"
           "\"data_offsets\":[4,12]}}",
           12, NMLP_E_FORMAT, "overlap");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 12, NMLP_E_FORMAT, "ends at byte 16");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 12, NMLP_E_FORMAT, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 12, NMLP_E_FORMAT, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 12, NMLP_E_FORMAT, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]}}", 12, NMLP_E_FORMAT, "needs 8 bytes");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2,10]}}", 12, NMLP_E_UNSUPPORTED, "aligned");
}

static void odd_dtypes_and_shapes_are_refused(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, NMLP_E_UNSUPPORTED, "\"U16\"");
    refuse("{\"a\":{\"shape\":[1],\"data_offsets\":[0,8]}}", 8, NMLP_E_UNSUPPORTED, "dtype");
    refuse("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, NMLP_E_FORMAT, "shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, NMLP_E_UNSUPPORTED,
           "5 dimensions");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, NMLP_E_FORMAT,
           "dimension 1");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,8]}}", 8, NMLP_E_FORMAT, "dimension 0");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, NMLP_E_FORMAT, "dimension 0");
    refuse("{\"a\":7}", 8, NMLP_E_FORMAT, "entry a");
    refuse("[1]", 8, NMLP_E_FORMAT, "object");
    refuse("{\"a\":", 8, NMLP_E_FORMAT, "JSON");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_file_gives_views),          cmocka_unit_test(empty_and_truncated_files_are_refused),
        cmocka_unit_test(a_header_past_the_end_is_refused),  cmocka_unit_test(overlaps_and_ranges_are_refused),
        cmocka_unit_test(odd_dtypes_and_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
