"""How the kernel calls a policy."""


def ask(policy, channel, now):
    """Return the stream that *policy* picks; ``_compiler`` says how compiled code calls it (decision 3)."""
    return policy(channel, now)
