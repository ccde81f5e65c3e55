"""Can a machine still move, and if not, which part waits for what that never comes?"""
