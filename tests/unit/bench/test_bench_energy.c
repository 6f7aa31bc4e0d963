/* The energy meter against a folder made like Linux's. */
#include <math.h>
#include <sys/stat.h>

#include "bench/energy.h"
#include "lib/testing.h"

static void put(const char *root, const char *domain, const char *file, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, domain);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", root, domain, file);
    nmlp_test_write_file(path, text, strlen(text));
}

static void packages_and_memory_are_added_and_wrap(void **state) {
    char root[256];
    nmlp_energy meter;
    (void)state;
    nmlp_test_mkdtemp(root, sizeof root);
    put(root, "intel-rapl:0", "name", "package-0\n");
    put(root, "intel-rapl:0", "energy_uj", "9000000\n");
    put(root, "intel-rapl:0", "max_energy_range_uj", "10000000\n");
    put(root, "intel-rapl:0:0", "name", "core\n"); /* a part of the package: not counted twice */
    put(root, "intel-rapl:0:0", "energy_uj", "500\n");
    put(root, "intel-rapl:0:1", "name", "dram\n");
    put(root, "intel-rapl:0:1", "energy_uj", "1000000\n");
    put(root, "intel-rapl:0:1", "max_energy_range_uj", "10000000\n");
    nmlp_energy_open(&meter, root, false);
    assert_int_equal(meter.n_domains, 2);
    assert_true(nmlp_energy_joules(&meter) == 0);
    put(root, "intel-rapl:0:0", "energy_uj", "99999\n");
    put(root, "intel-rapl:0:1", "energy_uj", "3000000\n"); /* 2 J */
    put(root, "intel-rapl:0", "energy_uj", "2000000\n");   /* began again: 3 J */
    assert_true(fabs(nmlp_energy_joules(&meter) - 5) < 1e-9);
    put(root, "intel-rapl:0", "energy_uj", "2500000\n");
    assert_true(fabs(nmlp_energy_joules(&meter) - 5.5) < 1e-9);
    nmlp_energy_close(&meter);
    nmlp_test_rmdir(root);
}

static void without_counters_there_is_no_energy(void **state) {
    nmlp_energy meter;
    (void)state;
    nmlp_energy_open(&meter, "/nowhere", false);
    assert_true(isnan(nmlp_energy_joules(&meter)));
    nmlp_energy_close(&meter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packages_and_memory_are_added_and_wrap),
        cmocka_unit_test(without_counters_there_is_no_energy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
