/* The best kernel for y = x U V on a Trainium, its simulated time, a check of its values, and its source:
 *     ./plan_simulate trn2 256 512 128 1024 > kernel.py */
#include <neuronmlp/neuron_kernel.h>
#include <stdio.h>
#include <stdlib.h>

static nmlp_status describe(nmlp_neuron_kernel *kernel, nmlp_err *err) {
    nmlp_neuron_figures figures;
    double error;
    const char *source;
    nmlp_neuron_figures_init(&figures, sizeof figures);
    nmlp_status st = nmlp_neuron_kernel_simulate(kernel, &figures, err);
    if (st == NMLP_OK) st = nmlp_neuron_kernel_check(kernel, 1, 0, &error, err);
    if (st == NMLP_OK) st = nmlp_neuron_kernel_emit(kernel, NULL, &source, err);
    if (st != NMLP_OK) return st;
    fprintf(stderr, "tiling %s\n", nmlp_neuron_kernel_tiling(kernel));
    fprintf(stderr, "%.1f us simulated, at least %.1f us whatever the tiling; values within %.2g\n", figures.latency_us,
            figures.limit_us, error);
    fputs(source, stdout);
    return NMLP_OK;
}

int main(int argc, char **argv) {
    nmlp_err err;
    nmlp_neuron_problem problem;
    nmlp_neuron_kernel *kernel;
    if (argc != 6) {
        fprintf(stderr, "usage: %s TARGET ROWS INPUTS RANK OUTPUTS\n", argv[0]);
        return 2;
    }
    nmlp_neuron_problem_init(&problem, sizeof problem);
    problem.target = argv[1];
    problem.kernel = "xuv";
    problem.rows = atoll(argv[2]);
    problem.inputs = atoll(argv[3]);
    problem.rank = atoll(argv[4]);
    problem.outputs = atoll(argv[5]);
    nmlp_status st = nmlp_neuron_kernel_create(&kernel, &problem, &err);
    if (st == NMLP_OK) {
        st = describe(kernel, &err);
        nmlp_neuron_kernel_destroy(kernel);
    }
    if (st != NMLP_OK) fprintf(stderr, "%s\n", err.message);
    return st == NMLP_OK ? 0 : 1;
}
