/* Every command of the program; defined in cmd_<name>.c, listed in main.c. */
#ifndef NMLP_CLI_COMMANDS_H
#define NMLP_CLI_COMMANDS_H

#include "cli/cli.h"

extern const nmlp_command nmlp_cmd_doctor;
extern const nmlp_command nmlp_cmd_info;
extern const nmlp_command nmlp_cmd_tokenize;
extern const nmlp_command nmlp_cmd_logits;
extern const nmlp_command nmlp_cmd_run;
extern const nmlp_command nmlp_cmd_serve;
extern const nmlp_command nmlp_cmd_synth;
extern const nmlp_command nmlp_cmd_optimize;
extern const nmlp_command nmlp_cmd_compress;
extern const nmlp_command nmlp_cmd_quantize;
extern const nmlp_command nmlp_cmd_expand;
extern const nmlp_command nmlp_cmd_import;
extern const nmlp_command nmlp_cmd_export;
extern const nmlp_command nmlp_cmd_recover;
extern const nmlp_command nmlp_cmd_eval;
extern const nmlp_command nmlp_cmd_simulate;
extern const nmlp_command nmlp_cmd_emit;
extern const nmlp_command nmlp_cmd_fit;
extern const nmlp_command nmlp_cmd_plan;
extern const nmlp_command nmlp_cmd_predict;
extern const nmlp_command nmlp_cmd_bench;
extern const nmlp_command nmlp_cmd_report;
extern const nmlp_command nmlp_cmd_paper;

#endif
