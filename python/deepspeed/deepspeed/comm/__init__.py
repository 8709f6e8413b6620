"""x"""
def is_initialized(): return False
def get_world_size(group=None): return 1
def get_rank(group=None): return 0
