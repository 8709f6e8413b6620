// The built-in chat templates. What is between {% generation %} and {% endgeneration %} is an answer, which is trained.
#include "tessera/data/chat_template.h"

namespace tessera::data {
namespace {

// Alpaca's own prompt (Taori et al. 2023): one instruction after the other.
constexpr const char* kAlpaca = R"({%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ message.content ~ '\n\n' }}
{%- elif message.role == 'user' -%}
{%- if loop.first -%}
{{ 'Below is an instruction that describes a task' ~ (', paired with an input that provides further context' if message.input else '') ~ '. Write a response that appropriately completes the request.\n\n' }}
{%- endif -%}
{{ '### Instruction:\n' ~ (message.instruction if message.instruction is defined else message.content) ~ '\n\n' }}
{%- if message.input -%}
{{ '### Input:\n' ~ message.input ~ '\n\n' }}
{%- endif -%}
{{ '### Response:\n' if loop.last and add_generation_prompt }}
{%- elif message.role == 'assistant' -%}
{{ '### Response:\n' }}{% generation %}{{ message.content ~ eos_token }}{% endgeneration %}{{ '\n\n' if not loop.last }}
{%- else -%}
{{ raise_exception('the roles are system, user and assistant') }}
{%- endif -%}
{%- endfor -%})";

// ChatML (OpenAI 2023). `start`: what stands before the first message.
std::string chatml(const std::string& start) {
  return "{%- for message in messages -%}\n" + start + R"({{ '<|im_start|>' ~ message.role ~ '\n' }}
{%- if message.role == 'assistant' -%}
{% generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
{%- else -%}
{{ message.content ~ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt }})";
}

std::string internlm2() { return chatml("{{ bos_token if loop.first }}"); }

std::string qwen2() {
  return chatml(
      "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' if loop.first and message.role != 'system' "
      "}}");
}

// Llama 2 (Touvron et al. 2023): the system's message stands in the first question.
constexpr const char* kLlama2 =
    R"({%- set system = messages[0].content if messages and messages[0].role == 'system' else none -%}
{%- for message in (messages[1:] if system is not none else messages) -%}
{%- if message.role == 'user' and loop.index0 % 2 == 0 -%}
{{ bos_token ~ '[INST] ' ~ ('<<SYS>>\n' ~ system ~ '\n<</SYS>>\n\n' if loop.first and system is not none else '') ~ (message.content | trim) ~ ' [/INST]' }}
{%- elif message.role == 'assistant' and loop.index0 % 2 == 1 -%}
{% generation %}{{ ' ' ~ (message.content | trim) ~ ' ' ~ eos_token }}{% endgeneration %}
{%- else -%}
{{ raise_exception('questions and answers do not alternate') }}
{%- endif -%}
{%- endfor -%})";

// Llama 3 (Dubey et al. 2024).
constexpr const char* kLlama3 = R"({{ bos_token }}
{%- for message in messages -%}
{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}
{%- if message.role == 'assistant' -%}
{% generation %}{{ (message.content | trim) ~ '<|eot_id|>' }}{% endgeneration %}
{%- else -%}
{{ (message.content | trim) ~ '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt }})";

constexpr Registry<WriteTemplate>::Entry kTemplates[] = {
    {"alpaca", "Alpaca's instructions", [] { return std::string(kAlpaca); }},
    {"chatml", "ChatML", [] { return chatml(""); }},
    {"internlm2", "InternLM2's", internlm2},
    {"llama2", "Llama 2's", [] { return std::string(kLlama2); }},
    {"llama3", "Llama 3's", [] { return std::string(kLlama3); }},
    {"qwen2", "Qwen 2's, with its system message", qwen2},
};

}  // namespace

Registry<WriteTemplate> chat_templates() { return {"chat template", kTemplates}; }

}  // namespace tessera::data
