"""Keys and file names of DeepSpeed's checkpoints."""

from deepspeed._not_yet import attribute_guard

__getattr__ = attribute_guard(__name__)

# Files
BF16_ZERO_FILE_PREFIX = "bf16_zero_pp_rank_"
FP16_ZERO_FILE_PREFIX = "fp16_zero_pp_rank_"
LAYER_FILE_PREFIX = "layer_"
MODEL_FILE_PREFIX = "mp_rank_"
MODEL_FILE_SUFFIX = "_model_states.pt"
OPTIM_FILE_SUFFIX = "_optim_states.pt"
ZERO_FILE_PREFIX = "zero_pp_rank_"

# Optimizer state of a rank
BASE_OPTIMIZER_STATE = "base_optimizer_state"
BASE_OPTIMIZER_STATE_STEP = "base_optimizer_state_step"
CLIP_GRAD = "clip_grad"
FP32_FLAT_GROUPS = "fp32_flat_groups"
FP32_GROUPS = "fp32_groups"
FP32_WEIGHT_KEY = "fp32"
GROUP_PADDINGS = "group_paddings"
LOSS_SCALER = "loss_scaler"
OPTIMIZER_STATE_DICT = "optimizer_state_dict"
PARAM_ALIGNMENT_PADDINGS = "param_alignment_paddings"
PARAM_GROUPS = "param_groups"
PARAM_SLICE_MAPPINGS = "param_slice_mappings"
PARTITION_COUNT = "partition_count"
SINGLE_PARTITION_OF_FP32_GROUPS = "single_partition_of_fp32_groups"
ZERO_STAGE = "zero_stage"

# Model state
BUFFER_NAMES = "buffer_names"
CHECKPOINT_PARALLEL_DIMS = "checkpoint_parallel_dimensions"
CHECKPOINT_PP_DEGREE = "pp_degree"
DS_VERSION = "ds_version"
FROZEN_PARAM_FRAGMENTS = "frozen_param_fragments"
FROZEN_PARAM_SHAPES = "frozen_param_shapes"
PARAM_SHAPES = "param_shapes"

# Universal checkpoints
AUTOTP_UNSUPPORTED_PARAMETER_PATTERNS = "autotp_unsupported_parameter_patterns"
CAT_DIM = "cat_dim"
CHECKPOINT_TP_DEGREE = "tp_degree"
DS_AUTOEP_UC_META = "ds_autoep_uc_meta"
DS_AUTOTP_UC_META = "ds_autotp_universal_checkpoint_meta"
EP_IS_EXPERT_PARAM = "is_expert_param"
EP_NUM_EXPERTS = "ep_num_experts"
EXPERT_PARAMETER_PATTERNS = "expert_parameter_patterns"
ORIGINAL_VOCAB_SIZE = "original_vocab_size"
PADDED_VOCAB_SIZE = "padded_vocab_size"
PARAM = "param"
PARAMETER_TO_AVERAGE_PATTERNS = "parameter_to_average_patterns"
PARAMETER_WITH_2_SUB_PARAMS_CAT_DIM_0 = "parameter_with_2_sub_params_cat_dim_0"
PARAMETER_WITH_ROW_PARALLELISM_PATTERNS = "parameter_with_row_parallelism_patterns"
PARAMETER_WITH_SUB_PARAMS = "parameter_with_sub_params"
PARAM_N_SUB_PARAMS = "param_n_sub_params"
PIPELINE_REPLICATED_PARAMETER_PATTERNS = "pipeline_replicated_parameter_patterns"
SUB_PARAMS_SHAPE = "sub_params_shape"
SUB_PARAM_SHAPE = "sub_param_shape"
SUB_PARAM_SHARD_WIDTHS = "sub_param_shard_widths"
TP_REPLICATED_PARAMETER_PATTERNS = "tp_replicated_parameter_patterns"
UNIVERSAL_CHECKPOINT_INFO = "universal_checkpoint_info"
UNIVERSAL_CHECKPOINT_VERSION_KEY = "universal_checkpoint_version"
UNIVERSAL_CHECKPOINT_VERSION_VALUE = 0.4
VOCABULARY_PARAMETER_PATTERNS = "vocabulary_parameter_patterns"
VOCAB_TENSOR = "vocab_tensor"
