"""The comms logger: how often each collective ran, how long it took, and how fast it was."""

import datetime
import sys

import torch

from deepspeed.utils.logging import log_dist
from tessera import _core
from tessera.comm_log import bandwidths, readable_bytes as convert_size, trimmed_mean  # noqa: F401
from tessera.config_keys import defaults_in

_COLUMNS = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)",
            "busbw_avg (Gbps)")


def get_caller_func(frame=3):
    """The name of the function that many frames up."""
    return sys._getframe(frame).f_code.co_name


def print_rank_0(message):
    from deepspeed import comm
    if comm.get_rank() == 0:
        print(message)


def calc_bw_log(comm_op, size, duration):
    """(algorithm, bus) bandwidth in Gbit/s of `size` bytes in `duration` milliseconds on all ranks."""
    from deepspeed import comm
    return bandwidths(comm_op, size, duration, comm.get_world_size())


class CommsLogger:
    """`comms_dict` holds, by record name and message bytes, [count, latencies in ms, algorithm and bus bandwidths]."""

    def __init__(self):
        self.comms_dict = {}
        self._take(defaults_in("comms_logger"))

    def configure(self, comms_config):
        if comms_config.comms_logger_enabled:
            self.take(vars(comms_config.comms_logger))
        else:
            self.enabled = False

    def take(self, given):
        """A block comms_logger with all its keys. What engines send is logged too from here on."""
        self._take(given)
        if self.enabled:
            _core.start_collective_log()

    def take_engines(self):
        """What the engines' collectives cost since the last call."""
        for name, size, latency in _core.take_collective_log() if self.enabled else ():
            if self.prof_all or name in self.prof_ops:
                self.append(name, name, latency, size)

    def _take(self, given):
        self.enabled, self.verbose, self.debug = given["enabled"], given["verbose"], given["debug"]
        self.prof_all, self.prof_ops = given["prof_all"], list(given["prof_ops"])

    def start_profiling_comms(self):
        self.prof_all = True

    def stop_profiling_comms(self):
        self.prof_all = False

    def start_profiling_op(self, op_name_list):
        self.prof_ops = list(dict.fromkeys([*self.prof_ops, *op_name_list]))

    def stop_profiling_op(self, op_name_list):
        self.prof_ops = [name for name in self.prof_ops if name not in op_name_list]

    def append(self, raw_name, record_name, latency, msg_size):
        algbw, busbw = calc_bw_log(raw_name, msg_size, latency)
        record = self.comms_dict.setdefault(record_name, {}).setdefault(msg_size, [0, [], [], []])
        record[0] += 1
        for values, value in zip(record[1:], (latency, algbw, busbw)):
            values.append(value)
        if self.verbose:
            log_dist(f"comm op: {record_name} | time (ms): {latency:.2f} | msg size: {convert_size(msg_size)} | "
                     f"algbw (Gbps): {algbw:.2f} | busbw (Gbps): {busbw:.2f}", ranks=[0])

    def get_raw_data(self):
        self.take_engines()
        return {name: {size: [record[0], *map(list, record[1:])] for size, record in sizes.items()}
                for name, sizes in self.comms_dict.items()}

    def has_data(self):
        self.take_engines()
        return bool(self.comms_dict)

    def reset_data(self):
        self.take_engines()
        self.comms_dict.clear()

    def get_operation_names(self):
        self.take_engines()
        return list(self.comms_dict)

    def get_total_operations(self):
        self.take_engines()
        return sum(record[0] for sizes in self.comms_dict.values() for record in sizes.values())

    def get_operation_summary(self, operation_name):
        """Averages by message size, without the slowest and fastest tenth; None for an operation that did not run."""
        sizes = self.comms_dict.get(operation_name)
        if sizes is None:
            return None
        return {size: {
            "count": count,
            "total_latency_ms": sum(latencies),
            "avg_latency_ms": trimmed_mean(latencies, 0.1),
            "tput_avg_gbps": trimmed_mean(algbws, 0.1),
            "busbw_avg_gbps": trimmed_mean(busbws, 0.1),
            "msg_size_bytes": size,
            "msg_size_str": convert_size(size),
        } for size, (count, latencies, algbws, busbws) in sizes.items()}

    def log_all(self, print_log=True, show_straggler=False, return_dict=False):
        """The table on standard output, and with return_dict the same as a dict. show_straggler compares the ranks: it
        is a collective, to be called on all of them."""
        self.take_engines()
        summary = {name: self.get_operation_summary(name) for name in self.comms_dict}
        stragglers = self._straggler_analysis() if show_straggler else None
        if print_log:
            print(self._table(summary))
            if stragglers:
                print(self._straggler_table(stragglers))
        return self._with_metadata(summary, stragglers) if return_dict else None

    def _straggler_analysis(self):
        """What each operation cost beyond the fastest rank: its wait for the slowest."""
        from deepspeed.accelerator import get_accelerator
        found = {}
        for name, sizes in self.comms_dict.items():
            for size, (count, latencies, _, _) in sizes.items():
                fastest = torch.tensor(latencies, device=get_accelerator().current_device_name())
                torch.distributed.all_reduce(fastest, op=torch.distributed.ReduceOp.MIN)  # not logged itself
                total = float(fastest.sum())
                found.setdefault(name, {})[size] = {
                    "count": count, "total_comm_latency_ms": total,
                    "total_straggler_ms": sum(latencies) - total, "msg_size_str": convert_size(size)}
        return found

    @staticmethod
    def _table(summary):
        lines = ["".join(f"{column:<20}" for column in _COLUMNS)]
        for name, sizes in summary.items():
            lines.append(name)
            for row in sorted(sizes.values(), key=lambda row: row["msg_size_bytes"]):
                cells = ("", row["msg_size_str"], row["count"], *(f"{row[key]:.2f}" for key in (
                    "total_latency_ms", "avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps")))
                lines.append("".join(f"{cell:<20}" for cell in cells))
        return "\n".join(lines)

    @staticmethod
    def _straggler_table(stragglers):
        columns = ("Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)")
        lines = ["".join(f"{column:<20}" for column in columns)]
        for name, sizes in stragglers.items():
            lines.append(name)
            for row in sizes.values():
                cells = ("", row["msg_size_str"], row["count"], f"{row['total_comm_latency_ms']:.2f}",
                         f"{row['total_straggler_ms']:.2f}")
                lines.append("".join(f"{cell:<20}" for cell in cells))
        return "\n".join(lines)

    @staticmethod
    def _with_metadata(summary, stragglers):
        from deepspeed import comm
        ready = comm.is_initialized()
        return {"summary": summary, "straggler_analysis": stragglers,
                "metadata": {"world_size": comm.get_world_size() if ready else 1,
                             "rank": comm.get_rank() if ready else 0,
                             "timestamp": datetime.datetime.now().isoformat()}}
