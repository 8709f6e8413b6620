"""Models of the families that people fine-tune, small enough for a test, and data for them."""

import torch
from transformers import (BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config,
                          T5ForConditionalGeneration)

VOCABULARY = 61

_MAKERS = {
    "bert": lambda: BertForMaskedLM(BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=1, eos_token_id=2)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0,
        decoder_start_token_id=0)),
}
KINDS = (*_MAKERS, "llama with LoRA")


def base_of(kind):
    return kind.split()[0]


def make(kind):
    """Without adapters."""
    torch.manual_seed(0)
    return _MAKERS[base_of(kind)]()


def load(kind, folder):
    """As people do: from_pretrained, which makes partitioned parameters under ZeRO-3, and then adapters."""
    model = type(make(kind)).from_pretrained(folder)
    if "LoRA" not in kind:
        return model
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM"))


def rows(count, seed=0):
    """Token ids and labels, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randint(3, VOCABULARY, (count, 2, 12), generator=generator)
    return [{"input_ids": ids, "labels": labels} for ids, labels in pair]
