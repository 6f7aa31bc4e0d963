/* Every command on a model of a few kilobytes. */
#include "faults/campaign.h"

#define COMPRESS "compress %m -o out --calib %t --calib-tokens 64 --heldout 32 --ctx 16 --rounds 0 --tile 4"
#define RECOVER                                                                                                        \
    "recover %c -o out --text %t --teacher %m --steps 3 --batch 1 --ctx 16 --heldout 1 --eval-every 1 --explore 0 -t " \
    "1"
#define EVAL "eval %c --text %t --ctx 16 --max-tokens 64 -t 1"
#define TASK "eval %c --task-file %r/docs/examples/capitals.task.json --data %r/docs/examples/capitals.csv -t 1"

/* Fast ones first: with --repeats a place that they came through is left out of the slower ones. Those of which less is
 * asked (`loose`) come last. */
const fault_case fault_cases[] = {
    {"info", "info %c --json", NULL, NULL, NULL, NULL},
    {"tokenize", "tokenize %m -p hello --json", NULL, NULL, NULL, NULL},
    {"logits", "logits %c --ids 1,2,3 -t 1", NULL, NULL, NULL, NULL},
    {"run", "run %c -p hello -n 4 --device cpu -t 1", NULL, NULL, NULL, NULL},
    {"run-threads", "run %c -p hello -n 4 --device cpu -t 3", NULL, NULL, NULL, NULL},
    {"run-cuda", "run %c -p hello -n 4 --device cuda -t 1", NULL, NULL, NULL, NULL}, /* only by its name */
    {"synth", "@synth", NULL, NULL, NULL, NULL},
    {"export", "export %m -o out.gguf", NULL, "", NULL, NULL},
    {"import", "import %w/model.gguf -o out", NULL, "", NULL, NULL},
    {"expand", "expand %c -o out -t 1", NULL, "", NULL, NULL},
    {"eval", EVAL, NULL, NULL, NULL, NULL},
    {"eval-task", TASK, NULL, NULL, NULL, NULL},
    {"eval-suite", "eval %c --suite paper --data-dir %w/suite --ctx 16 --max-tokens 32 --resume state -t 1", NULL, "",
     NULL, "state"},
    {"quantize", "quantize %m -o out --format q4 --calib %t --calib-tokens 64 --heldout 32 --ctx 16 -t 1", NULL,
     "--resume", NULL, NULL},
    {"quantize-budget",
     "quantize %m -o out --budget-bytes 40000 --calib %t --calib-tokens 64 --heldout 32 --ctx 16 -t 1", NULL,
     "--resume", NULL, NULL},
    {"compress", COMPRESS " --ratio 0.3 -t 1", NULL, "--resume", NULL, NULL},
    {"compress-over", COMPRESS " --ratio 0.3 --alloc uniform -t 1", COMPRESS " --ratio 0.5 --recover none -t 1",
     "--resume", NULL, NULL},
    {"compress-threads", COMPRESS " --ratio 0.3 --alloc uniform --recover none -t 2", NULL, "--resume", NULL, NULL},
    {"simulate", "simulate --target trn1 --kernel xuv --shape 128,256,64,256", NULL, NULL, NULL, NULL},
    {"plan", "plan --target trn2 --op mlp --shape 1,128,0,256 --cache cache", NULL, "", NULL, NULL},
    {"emit", "emit --target trn1 --kernel xuv --shape 128,256,64,256 -o out.py", NULL, "", NULL, NULL},
    {"serve", "@serve %c --port 0 --slots 2 --device cpu --ctx 32 -t 1", NULL, NULL, NULL, NULL},
    {"recover", RECOVER, NULL, "--resume", NULL, NULL},
    {"budget", COMPRESS " --budget-bytes 20000 -t 1", NULL, "--resume", NULL, NULL},
    {"fit", "fit %r/tests/data/measured_example.csv --target trn1 -o out.machine", NULL, "", NULL, NULL},
    {"compress-train", COMPRESS " --ratio 0.3 --alloc uniform --recover train --train-steps 2 -t 1", NULL, "--resume",
     NULL, NULL},
    {"emit-package", "emit --target trn2 --model %c --buckets 1 -o out", NULL, "", NULL, NULL},
    {"predict", "predict %c --target trn2 --prompt 8 --generate 2 --json", NULL, NULL, NULL, NULL},
    {"optimize",
     "optimize %m -o out --for trn1 --tile 4 --max-loss 50% --calib %t --calib-tokens 64 --heldout 32 --verify 32 "
     "--ctx 16 "
     "-t 1",
     NULL, "--resume", NULL, NULL},
    {"doctor", "doctor", NULL, NULL, "aft", NULL},
    {"bench", "bench mlp --shape 32,64,16 --rows 1 --seconds 0.001 --csv out.csv --svg out.svg -t 1", NULL, NULL, "aft",
     NULL},
    {"report", "report %c -o out.html --rows-max 2048 --shape 128,128,64,128", NULL, "", "afc", NULL},
    {"paper", "paper --models llama-3.2-1b --rows-max 1024 --html out.html", NULL, "", "aftc", NULL},
};

const size_t fault_n_cases = sizeof fault_cases / sizeof fault_cases[0];
