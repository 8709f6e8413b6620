"""Where DeepSpeed's names are defined here. A module that only hands names on has rows in NAMES and no file: it is made
when someone imports it. A folder without __init__.py is such a package, with or without rows.

DeepSpeed imports all of itself at once, and programs rely on it: after `import deepspeed` they write
`deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES`. Here the same chain works, and loads only what it names.
"""

import functools
import importlib
import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from deepspeed import _not_yet

# Module -> rows, each "the module that has them: names"; `*` stands for all that it has, looked up at each use. A module
# with a file that calls serve() has the names of its rows besides its own.
NAMES = {
    "deepspeed": """
        deepspeed._arguments: _add_core_arguments add_config_arguments
        deepspeed.accelerator: get_accelerator
        deepspeed.comm: init_distributed
        deepspeed.constants: TORCH_DISTRIBUTED_DEFAULT_PORT
        deepspeed.runtime: zero
        deepspeed.runtime.activation_checkpointing: checkpointing
        deepspeed.runtime.base_optimizer: DeepSpeedOptimizer
        deepspeed.runtime.config: DeepSpeedConfig DeepSpeedConfigError MUON_OPTIMIZER
        deepspeed.runtime.dataloader: DeepSpeedDataLoader
        deepspeed.runtime.engine: DeepSpeedEngine
        deepspeed.runtime.initialize: DeepSpeedOptimizerCallable DeepSpeedSchedulerCallable initialize
        deepspeed.runtime.pipe.engine: PipelineEngine
        deepspeed.runtime.pipe.module: PipelineModule
        deepspeed.utils: OnDevice log_dist logger
        tessera.tensor_parallel: set_autotp_mode tp_model_init
    """,
    "deepspeed.accelerator": """
        deepspeed.accelerator.abstract_accelerator: DeepSpeedAccelerator
        deepspeed.accelerator.real_accelerator: get_accelerator is_current_accelerator_supported set_accelerator
    """,
    "deepspeed.checkpoint": """
        deepspeed.checkpoint.constants: *
        deepspeed.checkpoint.utils: *
    """,
    "deepspeed.comm": "deepspeed.comm.comm: *",
    "deepspeed.comm.comm": """
        deepspeed.comm.constants: *
        deepspeed.comm.utils: *
    """,
    "deepspeed.comm.config": """
        deepspeed._blocks: CommsLoggerConfig DeepSpeedCommsConfig
        deepspeed.comm.constants: *
    """,
    "deepspeed.comm.reduce_op": "torch.distributed: ReduceOp",
    "deepspeed.compile": "",
    "deepspeed.compile.config": "deepspeed._blocks: CompileConfig",
    "deepspeed.compression.compress": "deepspeed._when_used: init_compression redundancy_clean",
    "deepspeed.moe.experts": "deepspeed.moe.layer: Experts",
    "deepspeed.moe.sharded_moe": "deepspeed.moe.layer: MOELayer TopKGate",
    "deepspeed.launcher.runner": """
        deepspeed.launcher.multinode_runner: *
        deepspeed.launcher.constants: *
    """,
    "deepspeed.monitor": "",
    "deepspeed.monitor.comet": "deepspeed.monitor.monitor: CometMonitor EventsLogScheduler",
    "deepspeed.monitor.config": """
        deepspeed._blocks: CSVConfig CometConfig DeepSpeedMonitorConfig TensorBoardConfig WandbConfig get_monitor_config
    """,
    "deepspeed.monitor.csv_monitor": "deepspeed.monitor.monitor: csvMonitor",
    "deepspeed.monitor.tensorboard": "deepspeed.monitor.monitor: TensorBoardMonitor",
    "deepspeed.monitor.wandb": "deepspeed.monitor.monitor: WandbMonitor",
    "deepspeed.ops": "deepspeed.ops.op_builder: __compatible_ops__",
    "deepspeed.module_inject": "",
    "deepspeed.module_inject.layers": "tessera.tensor_parallel: GatherReplacedLayerParams",
    "deepspeed.ops.adagrad": "tessera.optimizers: DeepSpeedCPUAdagrad",
    "deepspeed.ops.adam": "tessera.optimizers: DeepSpeedCPUAdam FusedAdam",
    "deepspeed.ops.adam.cpu_adam": "tessera.optimizers: DeepSpeedCPUAdam",
    "deepspeed.ops.adam.fused_adam": "tessera.optimizers: FusedAdam",
    "deepspeed.ops.aio": "deepspeed.ops.op_builder: AsyncIOBuilder",
    "deepspeed.ops.lamb": "tessera.optimizers: FusedLamb",
    "deepspeed.ops.lion": "tessera.optimizers: DeepSpeedCPULion FusedLion",
    "deepspeed.ops.op_builder.builder": "deepspeed.ops.op_builder: OpBuilder",
    "deepspeed.pipe": "deepspeed.runtime.pipe.module: LayerSpec PipelineModule TiedLayerSpec",
    "deepspeed.profiling": "",
    "deepspeed.profiling.config": "deepspeed._blocks: DeepSpeedFlopsProfilerConfig FLOPS_PROFILER",
    "deepspeed.profiling.flops_profiler": "deepspeed.profiling.flops_profiler.profiler: *",
    "deepspeed.runtime.activation_checkpointing.config": """
        deepspeed._blocks: ACT_CHKPT ACT_CHKPT_CONTIGUOUS_MEMORY_OPTIMIZATION ACT_CHKPT_CPU_CHECKPOINTING ACT_CHKPT_DEFAULT
        deepspeed._blocks: ACT_CHKPT_NUMBER_CHECKPOINTS ACT_CHKPT_PARTITION_ACTIVATIONS ACT_CHKPT_PROFILE
        deepspeed._blocks: ACT_CHKPT_SYNCHRONIZE_CHECKPOINT_BOUNDARY DeepSpeedActivationCheckpointingConfig
    """,
    "deepspeed.runtime.base_optimizer": "deepspeed.runtime.optimizer_classes: DeepSpeedOptimizer ZeROOptimizer",
    "deepspeed.runtime.bf16_optimizer": "deepspeed.runtime.optimizer_classes: BF16_Optimizer",
    "deepspeed.runtime.checkpoint_engine": """
        deepspeed.runtime.checkpoint_engine.checkpoint_engine: CheckpointCommitInfo TorchCheckpointEngine
    """,
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine": """
        deepspeed.runtime.checkpoint_engine.checkpoint_engine: CheckpointCommitInfo CheckpointEngine TorchCheckpointEngine
    """,
    "deepspeed.runtime.config": """
        deepspeed.runtime.config_keys: *
        deepspeed.runtime.constants: *
    """,
    "deepspeed.runtime.data_pipeline": "",
    "deepspeed.runtime.data_pipeline.config": "deepspeed.runtime.data_pipeline.constants: *",
    "deepspeed.runtime.data_pipeline.data_routing": "",
    "deepspeed.runtime.data_pipeline.data_routing.helper": """
        deepspeed._when_used: convert_to_random_ltd remove_random_ltd_state_dict save_without_random_ltd
    """,
    "deepspeed.runtime.data_pipeline.data_sampling": "",
    "deepspeed.runtime.data_pipeline.data_sampling.utils": """
        deepspeed.runtime.data_pipeline.data_sampling.data_analyzer: split_dataset split_index
        deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset: close_mmap_dataset_builder create_mmap_dataset_builder
        deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset: find_fit_int_dtype
    """,
    "deepspeed.runtime.fp16.fused_optimizer": "deepspeed.runtime.optimizer_classes: FP16_Optimizer",
    "deepspeed.runtime.fp16.onebit": "tessera.optimizers: ZeroOneAdam",
    "deepspeed.runtime.fp16.onebit.adam": "deepspeed.runtime.fp16.onebit: OnebitAdam",
    "deepspeed.runtime.fp16.onebit.lamb": "deepspeed.runtime.fp16.onebit: OnebitLamb",
    "deepspeed.runtime.fp16.onebit.zoadam": "tessera.optimizers: ZeroOneAdam",
    "deepspeed.runtime.fp16.unfused_optimizer": "deepspeed.runtime.optimizer_classes: FP16_UnfusedOptimizer",
    "deepspeed.runtime.model_checkpointing": "",
    "deepspeed.runtime.model_checkpointing.config": """
        deepspeed._blocks: VALID_VALUES get_checkpoint_config get_checkpoint_writer_config
    """,
    "deepspeed.runtime.pipe": """
        deepspeed.runtime.pipe.module: LayerSpec PipelineModule TiedLayerSpec
        deepspeed.runtime.pipe.topology: ProcessTopology
    """,
    "deepspeed.runtime.precision_config": """
        deepspeed._blocks: BFLOAT16 BFLOAT16_OLD CONSECUTIVE_HYSTERESIS DELAYED_SHIFT DeepSpeedBF16Config DeepSpeedFP16Config
        deepspeed._blocks: FP16 INITIAL_LOSS_SCALE MIN_LOSS_SCALE SCALE_WINDOW get_bfloat16_config get_float16_config
    """,
    "deepspeed.runtime.sequence_parallel.ulysses_sp": """
        deepspeed.runtime.sequence_parallel._tiled_compute: SequenceTiledCompute TiledFusedLogitsLoss TiledMLP sequence_tiled_compute
    """,
    "deepspeed.runtime.swap_tensor": "deepspeed.runtime.swap_tensor.constants: MIN_SWAPPABLE_BYTES",
    "deepspeed.runtime.swap_tensor.aio_config": """
        deepspeed._blocks: AIO_DEFAULT_DICT get_aio_config
        deepspeed.runtime.swap_tensor.constants: *
    """,
    "deepspeed.runtime.tensor_parallel": "",
    "deepspeed.runtime.tensor_parallel.config": """
        deepspeed._blocks: AUTOTP_MODE TPConfig TPTrainingConfig get_tensor_parallel_config
    """,
    "deepspeed.runtime.zenflow": "",
    "deepspeed.runtime.zenflow.zenflow_config": "deepspeed.runtime.zero.config: ZenFlowConfig",
    "deepspeed.runtime.zero": """
        deepspeed.runtime.zero.partition_parameters: GatheredParameters Init ZeroParamStatus ZeroParamType
        deepspeed.runtime.zero.partition_parameters: register_external_parameter unregister_external_parameter
        deepspeed.runtime.zero.unwrap_model: unwrap_model_for_generation
        tessera.tiled_linear: TiledLinear TiledLinearReturnBias
    """,
    "deepspeed.runtime.zero.leaf_module_config": """
        deepspeed.runtime.zero.config: DEFAULT_LEAF_MODULE_CLASSES DEFAULT_LEAF_MODULE_NAMES
        deepspeed.runtime.zero.config: DEFAULT_LEAF_MODULE_NAME_SUFFIXES DeepSpeedZeroLeafModuleConfig
    """,
    "deepspeed.runtime.zero.offload_config": """
        deepspeed.runtime.zero.config: DeepSpeedZeroOffloadOptimizerConfig DeepSpeedZeroOffloadParamConfig
        deepspeed.runtime.zero.config: OffloadDeviceEnum OffloadStateTypeEnum
    """,
    "deepspeed.runtime.zero.stage3": """
        deepspeed.runtime.optimizer_classes: DeepSpeedZeroOptimizer_Stage3
        deepspeed.runtime.zero._estimates: estimate_zero3_model_states_mem_needs estimate_zero3_model_states_mem_needs_all_cold
        deepspeed.runtime.zero._estimates: estimate_zero3_model_states_mem_needs_all_live model_to_params
    """,
    "deepspeed.runtime.zero.stage_1_and_2": """
        deepspeed.runtime.optimizer_classes: DeepSpeedZeroOptimizer
        deepspeed.runtime.zero._estimates: estimate_zero2_model_states_mem_needs estimate_zero2_model_states_mem_needs_all_cold
        deepspeed.runtime.zero._estimates: estimate_zero2_model_states_mem_needs_all_live
    """,
    "deepspeed.runtime.zero.tiling": "tessera.tiled_linear: TiledLinear TiledLinearReturnBias",
    "deepspeed.sequence.fpdt_layer": "deepspeed._when_used: FPDT_Attention FPDT_FFN FPDT_InputConstruct FPDT_LogitsLoss",
    "deepspeed.utils": """
        deepspeed.accelerator: get_accelerator
        deepspeed.runtime.dataloader: RepeatingLoader
        deepspeed.utils.bwc: bwc_pipeline_parallel_world_size bwc_tensor_model_parallel_world_size
        deepspeed.utils.comms_logging: get_caller_func
        deepspeed.utils.groups: DeprecatedException initialize
        deepspeed.utils.groups: get_data_parallel_group get_data_parallel_rank get_data_parallel_world_size
        deepspeed.utils.groups: get_model_parallel_group get_model_parallel_rank get_model_parallel_world_size
        deepspeed.utils.groups: get_tensor_model_parallel_group get_tensor_model_parallel_world_size
        deepspeed.utils.groups: get_tensor_model_parallel_rank get_tensor_model_parallel_src_rank
        deepspeed.utils.groups: set_tensor_model_parallel_rank set_tensor_model_parallel_world_size
        deepspeed.utils.logging: log_dist log_dist_once logger set_log_level_from_string
        deepspeed.utils.numa: get_numactl_cmd
        deepspeed.utils.nvtx: instrument_w_nvtx
        deepspeed.utils.tensor_fragment: *
        deepspeed.utils.z3_leaf_module: *
        tessera.leaf_modules: z3_leaf_module
        tessera.on_device: OnDevice
    """,
    "deepspeed.utils.config": """
        deepspeed._blocks: DeepSpeedThroughputTimerConfig TIMERS TIMERS_THROUGHPUT get_timers_config
    """,
    "deepspeed.utils.exceptions": "deepspeed.utils.groups: DeprecatedException",
    "deepspeed.utils.init_on_device": "tessera.on_device: OnDevice",
    "deepspeed.utils.tensor_fragment": """
        tessera.fragments: safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state
        tessera.fragments: safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state
        tessera.fragments: safe_set_full_fp32_param safe_set_full_grad safe_set_full_optimizer_state
        tessera.fragments: safe_set_local_fp32_param safe_set_local_grad safe_set_local_optimizer_state
        tessera.fragments: safe_update_full_grad_vectorized
    """,
    "deepspeed.utils.z3_leaf_module": """
        tessera.leaf_modules: get_z3_leaf_modules set_z3_leaf_module set_z3_leaf_modules set_z3_leaf_modules_by_name
        tessera.leaf_modules: set_z3_leaf_modules_by_suffix unset_z3_leaf_modules z3_leaf_module z3_leaf_parameter
    """,
}

_ENTRY = __file__ + ":"  # with a package's name: what its __path__ has after its folder, so that files come first
_FOLDER = os.path.dirname(os.path.dirname(__file__))


def serve(module_name):
    """The module gets the names of its rows and, if a package, its submodules, and says which names Tessera lacks."""
    module = sys.modules[module_name]

    def get_attribute(name):
        if name == "__all__":
            return [each for each in {*vars(module), *_names_of_rows(module_name)} if not each.startswith("_")]
        for home, names in _rows(module_name):
            if name in names:
                value = getattr(importlib.import_module(home), name)
                setattr(module, name, value)
                return value
            if names == ["*"] and not name.startswith("__") and _has(importlib.import_module(home), name):
                return getattr(sys.modules[home], name)
        if not name.startswith("__") and _is_submodule(module, name):
            return importlib.import_module(f"{module_name}.{name}")
        raise _not_yet.missing_attribute(module_name, name, asking=sys._getframe(1))

    def list_attributes():
        submodules = pkgutil.iter_modules(getattr(module, "__path__", ()))
        return sorted({*vars(module), *_names_of_rows(module_name), *(each.name for each in submodules)})

    module.__getattr__ = get_attribute
    module.__dir__ = list_attributes
    if hasattr(module, "__path__"):
        module.__path__.append(_ENTRY + module_name)


@functools.cache
def _rows(module_name):
    rows = (row.strip().partition(": ") for row in NAMES.get(module_name, "").strip().splitlines())
    return [(home, names.split()) for home, _, names in rows]


def _names_of_rows(module_name):
    for home, names in _rows(module_name):
        if names == ["*"]:
            module = importlib.import_module(home)
            names = [name for name in dir(module) if not name.startswith("_") and _has(module, name)]
        yield from names


def _has(module, name):
    """Not counting what it imports as a module."""
    return hasattr(module, name) and not isinstance(getattr(module, name), ModuleType)


def _is_submodule(module, name):
    try:
        return PathFinder.find_spec(f"{module.__name__}.{name}", getattr(module, "__path__", [])) is not None
    except _not_yet.NotInTesseraError:
        return False


def _folders_of(package):
    folder = os.path.join(_FOLDER, *package.split("."))
    return [folder] if os.path.isdir(folder) else []


class _FinderOfNames:
    """Finds and makes a package's modules that have no file, and refuses those that Tessera has not. An importer for
    sys.path_hooks, not sys.meta_path: Python asks it after the package's folder, and pkgutil asks it too.

    All of them are packages: then `from module import name` also asks it for a name that is missing."""

    def __init__(self, entry):
        if not entry.startswith(_ENTRY):
            raise ImportError(f"no package's entry: {entry}")
        self.package = entry.removeprefix(_ENTRY)

    def find_spec(self, full_name, target=None):
        folders = _folders_of(full_name)
        if folders or full_name in NAMES:
            spec = ModuleSpec(full_name, self, origin=__file__, is_package=True)
            spec.submodule_search_locations += folders
            return spec
        if _not_yet.is_missing(full_name):
            raise _not_yet.NotInTesseraError(_not_yet.sentence(full_name))
        return None

    def iter_modules(self, prefix=""):
        """For pkgutil."""
        names = {full_name.rpartition(".")[2] for full_name in NAMES if full_name.rpartition(".")[0] == self.package}
        for folder in _folders_of(self.package):
            names |= {entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name != "__pycache__"}
        return [(prefix + name, True) for name in sorted(names)]

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        homes = {home for home, _ in _rows(module.__name__)}
        module.__doc__ = f"Names of {', '.join(sorted(homes))}." if homes else "A package of modules."
        serve(module.__name__)
        for name in (name for _, names in _rows(module.__name__) for name in names):
            if f"{module.__name__}.{name}" in NAMES:  # also a module, which would take the name at its first import
                importlib.import_module(f"{module.__name__}.{name}")
                vars(module).pop(name, None)


sys.path_hooks.append(_FinderOfNames)
