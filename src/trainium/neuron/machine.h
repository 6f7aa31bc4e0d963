/* What a NeuronCore is made of, as data.
 *
 * A machine file has one key a line: `key value [tag] source`. The tag says where the number comes from: documented
 * (the vendor's text), figure (read off a published figure or computed from one), third-party (somebody else's
 * measurement), fitted (chosen here so that simulated times meet the published ones named in the source), measured
 * (fitted to device times in the file named). `#` starts a comment. Every key is required, none may come twice;
 * docs/simulator.md explains each.
 *
 * trn1, trn2 and trn3 are built in; they are files of the same format (src/trainium/neuron/machines/). */
#ifndef NMLP_TRAINIUM_NEURON_MACHINE_H
#define NMLP_TRAINIUM_NEURON_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

enum { NMLP_MACHINE_NAME_MAX = 32, NMLP_MACHINE_SOURCE_MAX = 160, NMLP_MACHINE_FITTED_MAX = 4 };

typedef enum nmlp_origin_tag {
    NMLP_ORIGIN_DOCUMENTED,
    NMLP_ORIGIN_FIGURE,
    NMLP_ORIGIN_THIRD_PARTY,
    NMLP_ORIGIN_FITTED,
    NMLP_ORIGIN_MEASURED
} nmlp_origin_tag;

/* Every number of a machine: X(key, smallest allowed, largest allowed, meaning). Flags are 0 or 1. */
#define NMLP_MACHINE_KEYS(X)                                                                                           \
    X(generation, 2, 4, "NeuronCore version")                                                                          \
    X(partitions, 1, 128, "partitions of SBUF and PSUM, rows of the PE array")                                         \
    X(sbuf_partition_bytes, 1024, 16777216, "SBUF bytes per partition")                                                \
    X(sbuf_usable_bytes, 1024, 16777216, "SBUF bytes per partition a kernel may use")                                  \
    X(psum_banks, 1, 64, "PSUM banks per partition")                                                                   \
    X(psum_bank_bytes, 64, 65536, "bytes of a PSUM bank per partition")                                                \
    X(psum_16bit, 0, 1, "flag: matmul may write 16-bit PSUM")                                                          \
    X(stationary_max, 1, 128, "free elements of a stationary operand")                                                 \
    X(moving_max, 1, 8192, "free elements of a moving operand (fp32 result)")                                          \
    X(sbuf_free_max, 1, 1048576, "elements per partition one instruction may touch in SBUF")                           \
    X(psum_free_max, 1, 1048576, "elements per partition one instruction may touch in PSUM")                           \
    X(tensor_clock_ghz, 0.01, 100, "PE array clock")                                                                   \
    X(tensor_sustained, 0.01, 1, "share of the nominal tensor rate that is reached in steady state")                   \
    X(tensor_min_cycles, 1, 4096, "shortest interval between matmuls")                                                 \
    X(tensor_fp32_passes, 1, 16, "passes of an fp32 matmul")                                                           \
    X(tensor_load_speedup, 1, 64, "LoadStationary is this much faster than a moving pass")                             \
    X(tensor_latency_ns, 0, 100000, "last moving column in to result readable in PSUM")                                \
    X(tensor_warmup_us, 0, 1000, "ramp of the power limiter; 0: none")                                                 \
    X(tensor_cold_rate, 0.01, 1, "share of the rate at the start of the ramp")                                         \
    X(vector_clock_ghz, 0.01, 100, "VectorE clock")                                                                    \
    X(vector_min_cycles, 1, 4096, "shortest VectorE instruction")                                                      \
    X(vector_overhead_ns, 0, 100000, "VectorE time per instruction besides its elements")                              \
    X(vector_latency_ns, 0, 100000, "VectorE end of issue to result readable")                                         \
    X(vector_fast_modes, 0, 1, "flag: 2x and 4x modes for 16-bit data")                                                \
    X(scalar_clock_ghz, 0.01, 100, "ScalarE clock")                                                                    \
    X(scalar_min_cycles, 1, 4096, "shortest ScalarE instruction")                                                      \
    X(scalar_overhead_ns, 0, 100000, "ScalarE time per instruction besides its elements")                              \
    X(scalar_latency_ns, 0, 100000, "ScalarE end of issue to result readable")                                         \
    X(scalar_fast_modes, 0, 1, "flag: 2x copies of 16-bit data on ScalarE")                                            \
    X(scalar_tensor_copy, 0, 1, "flag: ScalarE runs tensor_copy (else activation copy)")                               \
    X(scalar_table_load_ns, 0, 1000000, "change of the activation table")                                              \
    X(gpsimd_clock_ghz, 0.01, 100, "GpSimdE clock")                                                                    \
    X(gpsimd_overhead_ns, 0, 100000, "GpSimdE time per instruction besides its elements")                              \
    X(psum_port_shared, 0, 1, "flag: VectorE and ScalarE take turns on PSUM")                                          \
    X(sbuf_port_shared, 0, 1, "flag: VectorE and GpSimdE take turns on SBUF")                                          \
    X(semaphore_ns, 0, 100000, "completion on one engine to start on another")                                         \
    X(dma_engines, 1, 1024, "DMA engines serving the core")                                                            \
    X(dma_partitions_per_engine, 1, 128, "neighbouring partitions one DMA engine serves")                              \
    X(dma_start_ns, 0, 1000000, "DMA trigger to first byte")                                                           \
    X(dma_done_ns, 0, 1000000, "last byte to start of the consumer")                                                   \
    X(dma_issue_ns, 0, 1000000, "interval between DMAs of one issuing stream")                                         \
    X(dma_issue_streams, 1, 64, "issuing streams that work side by side")                                              \
    X(dma_row_ns, 0, 100000, "DMA engine time per contiguous row besides its bytes")                                   \
    X(dma_bytes_per_ns, 0.001, 10000, "DMA engine rate inside a row")                                                  \
    X(dma_small_row_bytes, 1, 1048576, "rows below this run at the small rate")                                        \
    X(dma_small_bytes_per_ns, 0.001, 10000, "DMA engine rate of small rows")                                           \
    X(dma_transpose_slowdown, 1, 1000, "engine time of a transposing DMA over a copy")                                 \
    X(hbm_bytes_per_ns, 0.001, 100000, "HBM share of the core")                                                        \
    X(hbm_device_bytes, 1, 1e15, "HBM of the device")                                                                  \
    X(cores_per_device, 1, 1024, "NeuronCores of a device")                                                            \
    X(link_bytes_per_ns, 0.001, 1e6, "links between devices, per device")                                              \
    X(collective_hop_us, 0, 10000, "one hop of a collective inside a node")                                            \
    X(spill_whole, 0, 1, "flag: an accumulator that does not fit is spilled whole, else only its excess")              \
    X(launch_us, 0, 100000, "start and end of a kernel")

typedef enum nmlp_machine_key {
#define NMLP_MACHINE_KEY_ENUM(key, low, high, meaning) NMLP_MACHINE_KEY_##key,
    NMLP_MACHINE_KEYS(NMLP_MACHINE_KEY_ENUM)
#undef NMLP_MACHINE_KEY_ENUM
        NMLP_MACHINE_N_KEYS
} nmlp_machine_key;

typedef struct nmlp_origin {
    nmlp_origin_tag tag;
    char source[NMLP_MACHINE_SOURCE_MAX];
} nmlp_origin;

typedef struct nmlp_machine {
    char name[NMLP_MACHINE_NAME_MAX];
#define NMLP_MACHINE_FIELD(key, low, high, meaning) double key;
    NMLP_MACHINE_KEYS(NMLP_MACHINE_FIELD)
#undef NMLP_MACHINE_FIELD
    nmlp_origin origin[NMLP_MACHINE_N_KEYS];
} nmlp_machine;

/* A built-in name (trn1, trn2, trn3) or the path of a machine file. */
nmlp_status nmlp_machine_open(nmlp_machine *machine, const char *target, nmlp_err *err);
/* `where` names the text in errors; they carry line and key. */
nmlp_status nmlp_machine_parse(nmlp_machine *machine, const char *where, const char *text, size_t len, nmlp_err *err);

/* Appends the text of a machine file with these numbers and sources. */
void nmlp_machine_print(const nmlp_machine *machine, nmlp_str *out);

/* Names of the built-in machines, in order; NULL past the end. */
const char *nmlp_machine_builtin_name(size_t index);
/* The text of a built-in machine file, or NULL. */
const char *nmlp_machine_builtin_text(const char *name);

const char *nmlp_machine_key_name(nmlp_machine_key key);
const char *nmlp_machine_key_meaning(nmlp_machine_key key);
void nmlp_machine_key_range(nmlp_machine_key key, double *low, double *high);
/* False: no such key. */
bool nmlp_machine_key_find(const char *name, nmlp_machine_key *key);
double nmlp_machine_value(const nmlp_machine *machine, nmlp_machine_key key);
void nmlp_machine_set(nmlp_machine *machine, nmlp_machine_key key, double value);
const char *nmlp_origin_tag_name(nmlp_origin_tag tag);

/* Nominal tensor rate in FLOP/ns for 16-bit (passes 1) or fp32 operands. */
double nmlp_machine_peak_flops_per_ns(const nmlp_machine *machine, bool fp32);

/* From NeuronCore-v3 on a DMA transpose may be lowered to the tensor engine: it takes one PSUM bank, and its
 * destination is aligned to so many bytes. */
enum { NMLP_DMA_TRANSPOSE_ALIGN = 32 };
int64_t nmlp_machine_psum_banks(const nmlp_machine *machine, bool with_dma_transposes);

/* Of every number (not of the sources): a changed machine file is another machine. */
uint64_t nmlp_machine_hash(const nmlp_machine *machine);

#endif
