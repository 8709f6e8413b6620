"""What an optimizer's parameter groups say beside their parameters: lr, betas, …"""


def options_of(group):
    return {key: value for key, value in group.items() if key != "params"}
