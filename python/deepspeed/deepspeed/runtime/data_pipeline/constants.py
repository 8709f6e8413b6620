"""Names of the keys of the ds_config's block data_efficiency, what each is when it is not given (`…_DEFAULT`), and the keys of the
sampler's state."""

from deepspeed import _key_table

# Blocks, and keys that the engine's table has.
DATA_EFFICIENCY, DATA_SAMPLING, DATA_ROUTING = "data_efficiency", "data_sampling", "data_routing"
CURRICULUM_LEARNING, DYNAMIC_BATCHING, RANDOM_LTD = "curriculum_learning", "dynamic_batching", "random_ltd"
_SAMPLING, _ROUTING = f"{DATA_EFFICIENCY}.{DATA_SAMPLING}", f"{DATA_EFFICIENCY}.{DATA_ROUTING}"

globals().update(_key_table.constants("DATA_EFFICIENCY_", DATA_EFFICIENCY, "enabled seed"))
globals().update(_key_table.constants("DATA_SAMPLING_", _SAMPLING, "enabled num_epochs num_workers pin_memory"))
globals().update(_key_table.constants("CURRICULUM_LEARNING_", f"{_SAMPLING}.{CURRICULUM_LEARNING}", "enabled"))
globals().update(_key_table.constants("DYNAMIC_BATCHING_", f"{_SAMPLING}.{DYNAMIC_BATCHING}", """
    enabled lr_scaling_method min_batch_size max_batch_size sequence_picking_order"""))
DYNAMIC_BATCHING_METRICS_PATH, DYNAMIC_BATCHING_MAX_TOKENS, DYNAMIC_BATCHING_VERBOSE = "metrics_path", "max_tokens", "verbose"
globals().update(_key_table.constants("DATA_ROUTING_", _ROUTING, "enabled"))
globals().update(_key_table.constants("RANDOM_LTD_", f"{_ROUTING}.{RANDOM_LTD}", "enabled"))

# A curriculum's metrics.
CURRICULUM_LEARNING_CLUSTER_PATH = "data_cluster_path"
CURRICULUM_LEARNING_METRICS = "curriculum_metrics"
CURRICULUM_LEARNING_SAMPLE_PATH = "index_to_sample_path"
CURRICULUM_LEARNING_METRIC_PATH = "index_to_metric_path"
CURRICULUM_LEARNING_CLUSTERING_TYPE = "clustering_type"
CURRICULUM_LEARNING_SINGLE_CLUSTER = "single_cluster"
CURRICULUM_LEARNING_CLUSTER_PREFIX = "cluster"
CURRICULUM_LEARNING_DIFFICULTY_TYPE = "difficulty_type"
CURRICULUM_LEARNING_VALUE_BASED = "value"
CURRICULUM_LEARNING_PERCENTILE_BASED = "percentile"
CURRICULUM_LEARNING_MIN_DIFFICULTY = "min_difficulty"
CURRICULUM_LEARNING_MAX_DIFFICULTY = "max_difficulty"
CURRICULUM_LEARNING_CURRENT_DIFFICULTY = "current_difficulty"

# Their schedules.
CURRICULUM_LEARNING_SCHEDULE_TYPE = "schedule_type"
CURRICULUM_LEARNING_SCHEDULE_CONFIG = "schedule_config"
CURRICULUM_LEARNING_SCHEDULE_DIFFICULTY = "difficulty"
CURRICULUM_LEARNING_SCHEDULE_MAX_STEP = "max_step"
CURRICULUM_LEARNING_SCHEDULE_TOTAL_STEP = "total_curriculum_step"
CURRICULUM_LEARNING_SCHEDULE_DIFFICULTY_STEP = "difficulty_step"
CURRICULUM_LEARNING_SCHEDULE_ROOT_DEGREE = "root_degree"
CURRICULUM_LEARNING_SCHEDULE_FIXED_DISCRETE = "fixed_discrete"
CURRICULUM_LEARNING_SCHEDULE_FIXED_ROOT = "fixed_root"
CURRICULUM_LEARNING_SCHEDULE_FIXED_LINEAR = "fixed_linear"
CURRICULUM_LEARNING_SCHEDULE_CUSTOM = "custom"

# The sampler's state.
CURRICULUM_LEARNING_BATCH = "batch"
CURRICULUM_LEARNING_CONSUMED_SAMPLES = "consumed_samples"
CURRICULUM_LEARNING_STEP = "curriculum_step"
CURRICULUM_LEARNING_CURRENT_DIFFICULTIES = "current_difficulties"
CURRICULUM_LEARNING_DATA_CLUSTER_PATHS = "data_cluster_paths"
CURRICULUM_LEARNING_DATA_CLUSTER_CURRENT_POSITION = "data_cluster_current_position"
CURRICULUM_LEARNING_NP_RNG_STATE = "np_rng_state"

# Random-LTD, of which there are the names alone.
RANDOM_LTD_MODEL_MASK_NAME = "model_mask_name"
RANDOM_LTD_MODEL_TYPE = "model_type"
RANDOM_LTD_MICRO_BATCH_SIZE = "micro_batch_size"
RANDOM_LTD_GLOBAL_BATCH_SIZE = "global_batch_size"
RANDOM_LTD_SAMPLE_INDEX = "sample_idx"
RANDOM_LTD_ATTENTION_MASK = "attention_mask"
RANDOM_LTD_HIDDEN_STATE_ORDER = "hidden_state_order"
RANDOM_LTD_LAYER_NUM = "random_ltd_layer_num"
RANDOM_LTD_LAYER_ID = "random_ltd_layer_id"
RANDOM_LTD_TOTAL_LAYER_NUM = "total_layer_num"
RANDOM_LTD_CONSUMED_LAYER_TOKENS = "consumed_layer_tokens"
RANDOM_LTD_SCHEDULER = "random_ltd_schedule"
RANDOM_LTD_MAX_VALUE, RANDOM_LTD_MIN_VALUE, RANDOM_LTD_CURRENT_VALUE = "max_value", "min_value", "current_value"
RANDOM_LTD_SCHEDULE_CONFIG = "schedule_config"
RANDOM_LTD_INCREASE_STEP = "seq_per_step"
RANDOM_LTD_REQUIRE_STEP = "require_steps"
RANDOM_LTD_SCHEDULER_TYPE = "schedule_type"
RANDOM_LTD_CURR_STEP = "current_steps"
RANDOM_LTD_LAYER_TOKEN_LR_SCHEDULE = "layer_token_lr_schedule"
RANDOM_LTD_LAYER_TOKEN_LR_ENABLED, RANDOM_LTD_LAYER_TOKEN_LR_ENABLED_DEFAULT = "enabled", False
RANDOM_LTD_TOTAL_LAYER_TOKENS = "total_layer_tokens"
RANDOM_LTD_WARMUP_TYPE = "warmup_type"
RANDOM_LTD_WARMUP_LAYER_TOKENS = "warmup_layer_tokens"
