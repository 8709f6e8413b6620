"""Ulysses for transformers' models: ranks that share sequences, each of which has some tokens of them.

    mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", sequence_parallel_size=2, micro_batch_size=1)
    engine, *_ = deepspeed.initialize(model=model, config=config, mpu=mpu)
    loader = UlyssesSPDataLoaderAdapter(loader, sp_rank, sp_group, sp_size, engine.device)

Every layer but attention works on a rank's own tokens. Batches bring "position_ids", by which causal attention knows them.
"""

import torch

from deepspeed import _names, comm as dist
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.utils import logger
from tessera.shared_sequences import exchanges

_names.serve(__name__)

_WITH_MASKS = ("eager", "paged|eager")  # which need a mask of all tokens


class UlyssesSPAttentionHF(torch.nn.Module):
    """In the place of one of transformers' attention functions, `attn`: it sees whole rows of some heads."""

    def __init__(self, attn, batch_size, attn_head_count, attn_head_size, kv_head_count, num_hidden_layers, process_group,
                 seq_length_is_variable=False, local_seq_length=None, global_seq_length=None, disable_in_eval=False):
        super().__init__()
        self.attn, self.process_group = attn, process_group
        self.world_size, self.sp_rank = dist.get_world_size(process_group), dist.get_rank(process_group)
        self.attn_head_count, self.global_kv_head_count, self.attn_head_size = attn_head_count, kv_head_count, attn_head_size
        self.batch_size, self.num_hidden_layers = batch_size, num_hidden_layers
        self.seq_length_is_variable, self.disable_in_eval = seq_length_is_variable, disable_in_eval
        self.local_seq_length, self.global_seq_length = local_seq_length, global_seq_length
        self.core_attn_implementation = None
        exchanges(process_group, 1, attn_head_count, kv_head_count)  # refuses heads that do not go round

    def forward(self, module, query, key, value, attention_mask, *args, **kwargs):
        """query (batch, heads, own tokens, size), key and value likewise -> (batch, own tokens, heads * size), weights"""
        if self.disable_in_eval and not module.training:
            return self.attn(module, query, key, value, attention_mask, *args, **kwargs)
        if kwargs.get("position_ids") is None:
            raise AssertionError("Ulysses SP requires position_ids in every forward() call: without them each rank's tokens would count "
                                 "from 0. UlyssesSPDataLoaderAdapter splits those of a batch")
        if not self.seq_length_is_variable and self.local_seq_length not in (None, query.shape[2]):
            raise AssertionError(f"this rank has {query.shape[2]} tokens of each row, and seq_length says {self.local_seq_length}")
        kwargs["position_ids"] = self._of_all(kwargs["position_ids"])
        by_queries, by_keys = exchanges(self.process_group, query.shape[2], query.shape[1], key.shape[1])
        query, key, value = (by.to_heads(each.transpose(1, 2)).transpose(1, 2)
                             for by, each in ((by_queries, query), (by_keys, key), (by_keys, value)))
        of_whole = getattr(module, "num_key_value_groups", None)
        if of_whole is not None:
            module.num_key_value_groups = query.shape[1] // key.shape[1]
        try:
            context, weights = self.attn(module, query, key, value, None, *args, **kwargs)
        finally:
            if of_whole is not None:
                module.num_key_value_groups = of_whole
        return by_queries.to_tokens(context).flatten(2), weights

    def _of_all(self, position_ids):
        parts = [torch.empty_like(position_ids) for _ in range(self.world_size)]
        dist.all_gather(parts, position_ids.contiguous(), group=self.process_group)
        return torch.cat(parts, dim=1)

    @classmethod
    def register_with_transformers(cls, model_name_or_path, core_attn_implementation, sequence_parallel_size, micro_batch_size,
                                   seq_length=None, seq_length_is_variable=True, disable_in_eval=False, max_length=None):
        """Collective. From now on transformers' attention of this name is shared. Returns an mpu for initialize; None for size 1.

        model_name_or_path: a model, or where its config is. seq_length: of a whole row, where all have the same."""
        if sequence_parallel_size == 1:
            return None
        if max_length is not None:
            logger.warning("max_length is deprecated: use seq_length")
            seq_length = max_length if seq_length is None else seq_length
        if not seq_length_is_variable and seq_length is None:
            raise ValueError("Either `seq_length_is_variable` needs to be `True` or `seq_length` needs to be set")
        from transformers import AutoConfig
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        parallel_state_sp.initialize_sequence_parallel(sequence_parallel_size)
        config = model_name_or_path.config if hasattr(model_name_or_path, "config") else AutoConfig.from_pretrained(model_name_or_path)
        own = getattr(config, "_attn_implementation", None)
        if own is not None and own != core_attn_implementation:
            raise ValueError(f"core_attn_implementation='{core_attn_implementation}' does not match model config "
                             f"attn_implementation='{own}': set both to the same value")
        if core_attn_implementation in _WITH_MASKS:
            raise ValueError(f"{core_attn_implementation} attn_implementation isn't currently supported by Ulysses sequence parallelism: it needs "
                             "a mask of all tokens. Use sdpa or flash attention")
        if core_attn_implementation not in ALL_ATTENTION_FUNCTIONS:
            raise ValueError(f"{core_attn_implementation} is not a valid attn_implementation. The choices are {ALL_ATTENTION_FUNCTIONS.valid_keys()}")
        sizes = config.get_text_config()
        heads = sizes.num_attention_heads
        shared = cls(
            attn=_core_of(ALL_ATTENTION_FUNCTIONS[core_attn_implementation]), batch_size=micro_batch_size, attn_head_count=heads,
            attn_head_size=getattr(sizes, "head_dim", None) or sizes.hidden_size // heads, kv_head_count=getattr(sizes, "num_key_value_heads", heads),
            num_hidden_layers=sizes.num_hidden_layers, process_group=parallel_state_sp.get_sequence_parallel_group(),
            seq_length_is_variable=seq_length_is_variable, disable_in_eval=disable_in_eval,
            local_seq_length=None if seq_length_is_variable else seq_length // sequence_parallel_size,
            global_seq_length=None if seq_length_is_variable else seq_length)
        shared.core_attn_implementation = core_attn_implementation

        def attention(module, query, key, value, attention_mask, *args, **kwargs):
            return shared(module, query, key, value, None, *args, **kwargs)  # a mask would be of own tokens alone

        attention.core = shared.attn
        ALL_ATTENTION_FUNCTIONS[core_attn_implementation] = attention
        return parallel_state_sp


def _core_of(function):
    """What transformers has itself, where an earlier call has put something in its place."""
    return getattr(function, "core", function)


class UlyssesSPDataLoaderAdapter:
    """Of a loader whose batches differ from rank to rank: each of them in turn, of which every rank gets its own tokens. Batches are dicts with
    input_ids, position_ids and labels, (rows, tokens); labels become shift_labels, each at the place of the token before it."""

    def __init__(self, dl, sp_rank, sp_group, sp_world_size, device):
        self.dl, self.sp_rank, self.sp_group, self.sp_world_size, self.device = dl, sp_rank, sp_group, sp_world_size, device
        self.iter, self.micro_batches = iter(dl), []

    def __len__(self):
        return len(self.dl) * self.sp_world_size

    def __iter__(self):
        return self

    def __next__(self):
        if not self.micro_batches:
            self.refill()
        return self.micro_batches.pop(0)

    def refill(self):
        """Collective over the group. StopIteration at the loader's end, after which it begins again."""
        try:
            batch = next(self.iter)
        except StopIteration:
            self.iter = iter(self.dl)
            raise
        if "position_ids" not in batch:
            raise ValueError("Ulysses SP requires `position_ids` in every dataloader batch: torch.arange(length) for each row, beginning again "
                             "at 0 where another document does")
        length = batch["input_ids"].shape[1]
        for name, value in batch.items():
            if torch.is_tensor(value) and value.shape[1] != length:
                raise ValueError(f"{name}'s shape {tuple(value.shape)} must match input_ids's shape {tuple(batch['input_ids'].shape)}")
        of_ranks = [None] * self.sp_world_size
        dist.all_gather_object(of_ranks, {name: value.cpu() if torch.is_tensor(value) else value for name, value in batch.items()},
                               group=self.sp_group)
        self.micro_batches = [self._own_tokens(of_rank) for of_rank in of_ranks]

    def _own_tokens(self, batch):
        length = batch["input_ids"].shape[1]
        if length % self.sp_world_size != 0:
            raise ValueError(f"batch's seqlen={length} isn't divisible by sp-size={self.sp_world_size}")
        batch["shift_labels"] = torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)[..., 1:]
        each = length // self.sp_world_size
        return {name: value[:, each * self.sp_rank:each * (self.sp_rank + 1)].contiguous() if torch.is_tensor(value) else value
                for name, value in batch.items()}
