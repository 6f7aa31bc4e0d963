/* config.json in both spellings, and what is refused. */
#include "checkpoint/config.h"
#include "lib/testing.h"

#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":"   \
    "100"

static nmlp_status read_config(nmlp_config *config, const char *text, nmlp_err *err) {
    nmlp_json_doc doc;
    nmlp_status st = nmlp_json_parse(&doc, text, strlen(text), "config.json", err);
    if (st == NMLP_OK) st = nmlp_config_parse(config, &doc, err);
    nmlp_json_free(&doc);
    return st;
}

static void both_spellings_of_rope_agree(void **state) {
    nmlp_config old;
    nmlp_config new;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(read_config(&old,
                               "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"rope_theta\":500000.0,"
                               "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":32.0,\"low_freq_factor\":1.0,"
                               "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
                               &err),
                   &err);
    nmlp_assert_ok(read_config(&new,
                               "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"rope_parameters\":{\"rope_type\":"
                               "\"llama3\",\"rope_theta\":500000.0,\"factor\":32.0,\"low_freq_factor\":1.0,"
                               "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
                               &err),
                   &err);
    assert_memory_equal(&old.rope, &new.rope, sizeof old.rope);
    assert_true(old.rope.kind == NMLP_ROPE_LLAMA3 && old.rope.theta == 500000 && old.rope.factor == 32);
    assert_int_equal(old.head_dim, 8); /* hidden / heads when absent */
    assert_int_equal(old.n_kv_heads, 8);
}

static void families_differ_in_bias_and_norms(void **state) {
    nmlp_config c;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(read_config(&c, "{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES "}", &err), &err);
    assert_true(c.qkv_bias && !c.o_bias && !c.features->qk_norm);
    nmlp_assert_ok(read_config(&c, "{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES "}", &err), &err);
    assert_true(!c.qkv_bias && c.features->qk_norm);
    nmlp_assert_ok(
        read_config(&c, "{\"architectures\":[\"MistralForCausalLM\"]," SIZES ",\"sliding_window\":null}", &err), &err);
    assert_string_equal(c.family, "mistral");
    nmlp_assert_ok(read_config(&c,
                               "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"attention_bias\":true,"
                               "\"eos_token_id\":[5,6,5]}",
                               &err),
                   &err);
    assert_true(c.qkv_bias && c.o_bias);
    assert_int_equal(c.n_stop_ids, 2);
}

static void refuse(const char *text, nmlp_status code, const char *part) {
    nmlp_config c;
    nmlp_err err;
    nmlp_assert_fails(read_config(&c, text, &err), &err, code, "config.json", part, NULL);
}

static void unknown_architectures_list_the_known(void **state) {
    (void)state;
    refuse("{\"architectures\":[\"GPT2LMHeadModel\"]," SIZES "}", NMLP_E_UNSUPPORTED, "GPT2LMHeadModel");
    refuse("{\"architectures\":[\"GPT2LMHeadModel\"]," SIZES "}", NMLP_E_UNSUPPORTED, "Qwen3ForCausalLM");
    refuse("{" SIZES "}", NMLP_E_MISSING, "architectures");
    refuse("[]", NMLP_E_FORMAT, "object");
}

static void what_would_compute_something_else_is_refused(void **state) {
    (void)state;
#define LLAMA "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
    refuse("{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES ",\"quantization_config\":{\"quant_method\":\"gptq\"}}",
           NMLP_E_UNSUPPORTED, "gptq");
    refuse("{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES ",\"quantization_config\":[]}", NMLP_E_UNSUPPORTED,
           "quantization_config");
    refuse(LLAMA ",\"max_position_embeddings\":32768,\"sliding_window\":4096}", NMLP_E_UNSUPPORTED, "sliding_window");
    /* The family's default has windows in three of four layers: without one they are nothing. */
    refuse("{\"architectures\":[\"Olmo3ForCausalLM\"]," SIZES ",\"sliding_window\":null}", NMLP_E_UNSUPPORTED,
           "sliding_window");
    refuse("{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES ",\"layer_types\":[\"sliding_attention\"]}",
           NMLP_E_FORMAT, "layer_types");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"mrope\"}}", NMLP_E_UNSUPPORTED, "mrope");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", NMLP_E_MISSING, "factor");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}", NMLP_E_FORMAT, "short_factor");
    refuse(LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1e92,1,1]}}", NMLP_E_FORMAT,
           "short_factor"); /* infinite in f32 */
    refuse(LLAMA ",\"partial_rotary_factor\":0.5}", NMLP_E_UNSUPPORTED, "partial_rotary_factor");
    refuse(LLAMA ",\"hidden_act\":\"gelu\"}", NMLP_E_UNSUPPORTED, "gelu");
    refuse(LLAMA ",\"mlp_bias\":true}", NMLP_E_UNSUPPORTED, "mlp_bias");
    refuse(LLAMA ",\"neuronmlp\":{\"version\":2}}", NMLP_E_UNSUPPORTED, "version 2");
    refuse(LLAMA ",\"neuronmlp\":{}}", NMLP_E_MISSING, "version");
}

/* Absent means 4096 for Mistral, null none; a window that no text outgrows is none; what is written says so again. */
static void windows_are_what_the_family_says(void **state) {
#define MISTRAL(positions)                                                                                             \
    "{\"architectures\":[\"MistralForCausalLM\"]," SIZES ",\"max_position_embeddings\":" positions
    nmlp_config c;
    nmlp_err err;
    nmlp_str text;
    (void)state;
    refuse(MISTRAL("4096") ",\"sliding_window\":0}", NMLP_E_FORMAT, "sliding_window");
    nmlp_assert_ok(read_config(&c, MISTRAL("32768") "}", &err), &err);
    assert_int_equal(nmlp_config_window(&c, 0), 4096);
    nmlp_assert_ok(read_config(&c, MISTRAL("4097") ",\"sliding_window\":4096}", &err), &err);
    assert_int_equal(nmlp_config_window(&c, 0), 4096);
    nmlp_assert_ok(read_config(&c, MISTRAL("4096") "}", &err), &err);
    assert_int_equal(nmlp_config_window(&c, 0), 0);
    nmlp_assert_ok(read_config(&c, MISTRAL("32768") ",\"sliding_window\":null}", &err), &err);
    assert_int_equal(nmlp_config_window(&c, 0), 0);
    nmlp_str_init(&text);
    nmlp_config_write(&c, NULL, NULL, 0, &text);
    assert_non_null(strstr(nmlp_str_text(&text), "\"sliding_window\":null"));
    nmlp_assert_ok(read_config(&c, nmlp_str_text(&text), &err), &err);
    nmlp_str_fini(&text);
}

/* Other families' weights run under Llama's name would be silently wrong. */
static void keys_of_other_families_are_refused(void **state) {
    nmlp_config c;
    nmlp_err err;
    (void)state;
    refuse(LLAMA ",\"model_type\":\"granite\"}", NMLP_E_UNSUPPORTED, "granite");
    refuse(LLAMA ",\"model_type\":\"qwen3\"}", NMLP_E_UNSUPPORTED, "qwen3");
    nmlp_assert_ok(read_config(&c, LLAMA ",\"model_type\":\"llama\"}", &err), &err);
    refuse(LLAMA ",\"embedding_multiplier\":12.0}", NMLP_E_UNSUPPORTED, "embedding_multiplier");
    refuse(LLAMA ",\"logits_scaling\":8}", NMLP_E_UNSUPPORTED, "logits_scaling");
    refuse(LLAMA ",\"no_rope_layers\":[1,1,1,0]}", NMLP_E_UNSUPPORTED, "no_rope_layers");
    refuse(LLAMA ",\"final_logit_softcapping\":30.0}", NMLP_E_UNSUPPORTED, "final_logit_softcapping");
    refuse(LLAMA ",\"num_local_experts\":8}", NMLP_E_UNSUPPORTED, "num_local_experts");
    refuse(LLAMA ",\"use_qk_norm\":true}", NMLP_E_UNSUPPORTED, "use_qk_norm");
    nmlp_assert_ok(read_config(&c, LLAMA ",\"logits_scaling\":1,\"use_qk_norm\":false,\"num_experts\":null}", &err),
                   &err);
}

/* A scaling added beside the newer spelling: one program reads the one, another the other. */
static void two_rope_descriptions_must_agree(void **state) {
    nmlp_config c;
    nmlp_err err;
    (void)state;
#define DEFAULT_ROPE "{\"rope_type\":\"default\",\"rope_theta\":10000.0}"
    refuse(LLAMA ",\"rope_parameters\":" DEFAULT_ROPE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}",
           NMLP_E_UNSUPPORTED, "rope_scaling and rope_parameters");
    nmlp_assert_ok(read_config(&c, LLAMA ",\"rope_parameters\":" DEFAULT_ROPE ",\"rope_scaling\":null}", &err), &err);
    nmlp_assert_ok(
        read_config(&c, LLAMA ",\"rope_parameters\":" DEFAULT_ROPE ",\"rope_scaling\":" DEFAULT_ROPE "}", &err), &err);
}

/* What earlier versions wrote, and what makes no sense. */
static void compressed_architectures_name_what_they_were(void **state) {
    nmlp_config c;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(read_config(&c, LLAMA ",\"model_type\":\"llama\",\"neuronmlp\":{\"version\":1}}", &err), &err);
    assert_true(c.compressed);
#define OWN "{\"architectures\":[\"NeuronmlpForCausalLM\"],\"model_type\":\"neuronmlp\"," SIZES
    nmlp_assert_ok(
        read_config(&c, OWN ",\"base_architecture\":\"Qwen3ForCausalLM\",\"neuronmlp\":{\"version\":1}}", &err), &err);
    assert_true(c.compressed && c.features->qk_norm && strcmp(c.architecture, "Qwen3ForCausalLM") == 0);
    refuse(OWN ",\"neuronmlp\":{\"version\":1}}", NMLP_E_MISSING, "base_architecture");
    refuse(OWN ",\"base_architecture\":\"LlamaForCausalLM\"}", NMLP_E_UNSUPPORTED, "model_type");
    refuse(OWN ",\"base_architecture\":\"NeuronmlpForCausalLM\",\"neuronmlp\":{\"version\":1}}", NMLP_E_UNSUPPORTED,
           "NeuronmlpForCausalLM");
}

static void senseless_sizes_are_refused(void **state) {
    (void)state;
    refuse(LLAMA ",\"num_key_value_heads\":3}", NMLP_E_FORMAT, "multiple");
    refuse(LLAMA ",\"head_dim\":7}", NMLP_E_FORMAT, "head_dim");
    refuse("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":81024,\"intermediate_size\":8,\"num_hidden_"
           "layers\":1,"
           "\"num_attention_heads\":2,\"vocab_size\":9}",
           NMLP_E_FORMAT, "head_dim 40512");
    refuse(LLAMA ",\"rope_theta\":-1}", NMLP_E_FORMAT, "rope_theta");
    refuse("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":0}", NMLP_E_FORMAT, "hidden_size");
    refuse("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":1e99}", NMLP_E_FORMAT, "hidden_size");
    refuse("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":\"64\"}", NMLP_E_FORMAT, "hidden_size");
    refuse("{\"architectures\":[\"LlamaForCausalLM\"]}", NMLP_E_MISSING, "hidden_size");
}

static void what_is_written_reads_back(void **state) {
    nmlp_config c;
    nmlp_config back;
    nmlp_err err;
    nmlp_str text;
    (void)state;
    nmlp_assert_ok(read_config(&c,
                               LLAMA ",\"num_key_value_heads\":2,\"tie_word_embeddings\":true,\"bos_token_id\":1,"
                                     "\"eos_token_id\":[2,3],\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                                     "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                                     "\"original_max_position_embeddings\":8192}}",
                               &err),
                   &err);
    nmlp_str_init(&text);
    nmlp_config_write(&c, "{\"version\":1,\"ratio\":0.25,\"tile\":128}", NULL, 0, &text);
    nmlp_assert_ok(read_config(&back, nmlp_str_text(&text), &err), &err);
    assert_true(back.compressed && back.ratio == 0.25 && back.tile == 128);
    /* other programs must not take it for a Llama with missing MLPs */
    assert_null(strstr(nmlp_str_text(&text), "\"model_type\":\"llama\""));
    assert_null(strstr(nmlp_str_text(&text), "\"architectures\":[\"Llama"));
    back.compressed = false;
    back.ratio = 0;
    back.tile = 0;
    assert_memory_equal(&back, &c, sizeof c);
    nmlp_str_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_of_rope_agree),
        cmocka_unit_test(families_differ_in_bias_and_norms),
        cmocka_unit_test(unknown_architectures_list_the_known),
        cmocka_unit_test(what_would_compute_something_else_is_refused),
        cmocka_unit_test(windows_are_what_the_family_says),
        cmocka_unit_test(keys_of_other_families_are_refused),
        cmocka_unit_test(two_rope_descriptions_must_agree),
        cmocka_unit_test(compressed_architectures_name_what_they_were),
        cmocka_unit_test(senseless_sizes_are_refused),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
