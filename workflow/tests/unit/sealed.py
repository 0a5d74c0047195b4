"""A save to a store, in the order that makes it complete."""

from takeback.trainers.stores import manifest


def save(store, step, objects):
    """Put a checkpoint, seal it, have ``latest`` name it; returns its name."""
    name = f"step-{step:08d}"
    for key, data in objects.items():
        store.write(f"{name}/{key}", data)
    manifest.seal(store, name, {key: manifest.digest(data) for key, data in objects.items()})
    store.write(manifest.POINTER, name.encode())
    return name
