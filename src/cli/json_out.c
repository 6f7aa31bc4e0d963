#include "cli/json_out.h"

nmlp_json_writer *nmlp_json_out_begin(nmlp_json_out *out) {
    nmlp_str_init(&out->text);
    nmlp_json_writer_init(&out->writer, &out->text);
    nmlp_json_begin_object(&out->writer, NULL);
    return &out->writer;
}

int nmlp_json_out_end(nmlp_json_out *out, const nmlp_cli *cli) {
    nmlp_json_end_object(&out->writer);
    int code = nmlp_cli_print_json(cli, &out->text);
    nmlp_str_fini(&out->text);
    return code;
}
