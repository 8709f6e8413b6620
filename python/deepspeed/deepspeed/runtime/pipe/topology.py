"""The grid of ranks, and the process groups along its axes."""

from deepspeed import comm as dist
from tessera.topology import RankGrid, prime_factors as _prime_factors


class ProcessTopology(RankGrid):
    """Ranks by their place on named axes."""


class PipeDataParallelTopology(ProcessTopology):
    """Data-parallel ranks lie next to each other: they talk most."""

    def __init__(self, num_pp, num_dp):
        super().__init__(axes=["pipe", "data"], dims=[num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    def __init__(self, num_pp, num_mp, num_dp):
        super().__init__(axes=["pipe", "data", "model"], dims=[num_pp, num_dp, num_mp])


class PipelineParallelGrid:
    """This rank's process groups; itself an mpu. Made on all ranks at once. `…_group` are lists of ranks where
    Megatron's names have process groups, so the process groups are `…_proc_group`.

        pp  the stages of one pipeline          dp  ranks with the same layers and different data
        slice  the tensor-parallel ranks of one stage      ds_model  all ranks that hold one model together
    """

    def __init__(self, topology=None, process_group=None):
        self.global_rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._topo = topology if topology is not None else self._squarest_topology()

        self.data_parallel_size = max(self._topo.get_dim("data"), 1)
        self.pipe_parallel_size = max(self._topo.get_dim("pipe"), 1)
        self.model_parallel_size = max(self._topo.get_dim("model"), 1)
        self.slice_parallel_size = self.model_parallel_size
        assert self._is_grid_valid(), (
            f"the topology has {self.pipe_parallel_size} * {self.data_parallel_size} * {self.model_parallel_size} "
            f"ranks (pipe, data, model), but the run has {self.world_size}")

        self.stage_id = self.get_stage_id()
        self.data_parallel_id = self.get_data_parallel_id()
        self.is_first_stage = self.stage_id == 0
        self.is_last_stage = self.stage_id == self.pipe_parallel_size - 1
        self.p2p_groups = self._build_p2p_groups()
        self._make_groups()

    def _squarest_topology(self):
        """As many stages as replicas, or about so."""
        stages = replicas = 1
        for index, factor in enumerate(_prime_factors(self.world_size)):
            if index % 2 == 0:
                stages *= factor
            else:
                replicas *= factor
        return PipeDataParallelTopology(num_pp=stages, num_dp=replicas)

    def _make_groups(self):
        models = [sorted(self._topo.get_axis_list("data", replica)) for replica in range(self.data_parallel_size)]
        self.ds_model_proc_group, mine = self._group_of(models)
        self.ds_model_rank, self.ds_model_world_size = mine.index(self.global_rank), len(mine)

        self.dp_groups = self._topo.get_axis_comm_lists("data")
        self.dp_proc_group, self.dp_group = self._group_of(self.dp_groups)
        self.pipe_groups = self._topo.get_axis_comm_lists("pipe")
        self.pp_proc_group, self.pp_group = self._group_of(self.pipe_groups)
        slices = self._topo.get_axis_comm_lists("model") or [[rank] for rank in range(self.world_size)]
        self.slice_proc_group, self.slice_group = self._group_of(slices)
        self.mp_group, self.model_groups = self.slice_group, slices

    def _group_of(self, rank_lists):
        """Makes a group of each list; hands out this rank's, with its ranks."""
        found = None, []
        for ranks in rank_lists:
            group = dist.new_group(ranks=ranks)
            if self.global_rank in ranks:
                found = group, ranks
        return found

    def _is_grid_valid(self):
        return self.world_size == self.data_parallel_size * self.pipe_parallel_size * self.model_parallel_size

    def _build_p2p_groups(self):
        """[rank, rank of the next stage] for each rank; the last stage is followed by the first."""
        pairs = []
        for rank in range(self.world_size):
            for ranks in self._topo.get_axis_comm_lists("pipe"):
                if rank in ranks:
                    pairs.append([rank, ranks[(ranks.index(rank) + 1) % len(ranks)]])
        return pairs

    def _my(self, axis):
        return getattr(self._topo.get_coord(self.global_rank), axis, 0)

    def get_stage_id(self):
        return self._my("pipe")

    def get_data_parallel_id(self):
        return self._my("data")

    def stage_to_global(self, stage_id, **kwargs):
        """The rank at this rank's place in another stage; axes in `kwargs` are moved, too."""
        place = self._topo.get_coord(self.global_rank)
        return self._topo.get_rank(**place._replace(pipe=stage_id, **kwargs)._asdict())

    def topology(self):
        return self._topo

    # What an mpu offers

    def get_global_rank(self):
        return self.global_rank

    def get_pipe_parallel_rank(self):
        return self.stage_id

    def get_pipe_parallel_world_size(self):
        return self.pipe_parallel_size

    def get_pipe_parallel_group(self):
        return self.pp_proc_group

    def get_data_parallel_rank(self):
        return self.data_parallel_id

    def get_data_parallel_world_size(self):
        return self.data_parallel_size

    def get_data_parallel_group(self):
        return self.dp_proc_group

    def get_data_parallel_group_ranks(self):
        return self.dp_group

    def get_model_parallel_rank(self):
        """The rank within the ranks that hold one model together, all stages of it."""
        return self.ds_model_rank

    def get_model_parallel_world_size(self):
        return self.ds_model_world_size

    def get_model_parallel_group(self):
        return self.ds_model_proc_group

    def get_slice_parallel_rank(self):
        return self._my("model")

    def get_slice_parallel_world_size(self):
        return self.slice_parallel_size

    def get_slice_parallel_group(self):
        return self.slice_proc_group

    get_pipeline_model_parallel_rank = get_pipe_parallel_rank
    get_pipeline_model_parallel_world_size = get_pipe_parallel_world_size
    get_pipeline_model_parallel_group = get_pipe_parallel_group
    get_tensor_model_parallel_rank = get_slice_parallel_rank
    get_tensor_model_parallel_world_size = get_slice_parallel_world_size
    get_tensor_model_parallel_group = get_slice_parallel_group
