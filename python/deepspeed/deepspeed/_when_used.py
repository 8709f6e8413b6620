"""Names that programs import at their start and use only where somebody asks for what they do: they can be imported, and say that
Tessera does not have them once they are used."""

_FULL_NAMES = {name: f"{module}.{name}" for module, names in {
    "deepspeed.compression.compress": "init_compression redundancy_clean",
    "deepspeed.runtime.data_pipeline.data_routing.helper": "convert_to_random_ltd remove_random_ltd_state_dict save_without_random_ltd",
    "deepspeed.sequence.fpdt_layer": "FPDT_Attention FPDT_FFN FPDT_InputConstruct FPDT_LogitsLoss",
}.items() for name in names.split()}


class _Refuses(type):
    def __call__(cls, *args, **kwargs):
        raise NotImplementedError(cls.__doc__)

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(cls.__doc__)


def __getattr__(name):
    if name not in _FULL_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"{_FULL_NAMES[name]} is not in Tessera: a program can import it, but not use it"
    return globals().setdefault(name, _Refuses(name, (), {"__module__": _FULL_NAMES[name].rpartition(".")[0], "__doc__": text}))
