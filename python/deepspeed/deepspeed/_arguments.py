"""The flags that a program offers so that its users can name a ds_config: --deepspeed and --deepspeed_config."""


def add_config_arguments(parser):
    """Adds the flags to an argparse parser, in a group of their own, and returns the parser."""
    return _add_core_arguments(parser)


def _add_core_arguments(parser):
    group = parser.add_argument_group("DeepSpeed", "Where to find the ds_config")
    group.add_argument("--deepspeed", action="store_true",
                       help="For the program's own use; the engine does not read it")
    group.add_argument("--deepspeed_config", type=str, default=None, help="Path of the ds_config, a JSON file")
    group.add_argument("--deepscale", action="store_true", help="old name of --deepspeed")
    group.add_argument("--deepscale_config", type=str, default=None, help="old name of --deepspeed_config")
    return parser
