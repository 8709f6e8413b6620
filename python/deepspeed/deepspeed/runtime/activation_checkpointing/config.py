"""The ds_config's block activation_checkpointing."""

from deepspeed.runtime.config_utils import DeepSpeedConfigObject

ACT_CHKPT = "activation_checkpointing"

ACT_CHKPT_PARTITION_ACTIVATIONS = "partition_activations"
ACT_CHKPT_NUMBER_CHECKPOINTS = "number_checkpoints"
ACT_CHKPT_CONTIGUOUS_MEMORY_OPTIMIZATION = "contiguous_memory_optimization"
ACT_CHKPT_SYNCHRONIZE_CHECKPOINT_BOUNDARY = "synchronize_checkpoint_boundary"
ACT_CHKPT_PROFILE = "profile"
ACT_CHKPT_CPU_CHECKPOINTING = "cpu_checkpointing"

ACT_CHKPT_DEFAULT = {
    ACT_CHKPT_PARTITION_ACTIVATIONS: False,
    ACT_CHKPT_NUMBER_CHECKPOINTS: None,
    ACT_CHKPT_CONTIGUOUS_MEMORY_OPTIMIZATION: False,
    ACT_CHKPT_SYNCHRONIZE_CHECKPOINT_BOUNDARY: False,
    ACT_CHKPT_PROFILE: False,
    ACT_CHKPT_CPU_CHECKPOINTING: False,
}


class DeepSpeedActivationCheckpointingConfig(DeepSpeedConfigObject):
    """One attribute a key."""

    def __init__(self, param_dict):
        given = param_dict.get(ACT_CHKPT, {})
        for key, default in ACT_CHKPT_DEFAULT.items():
            setattr(self, key, given.get(key, default))
