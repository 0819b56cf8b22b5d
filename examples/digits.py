"""The digits images of scikit-learn, 1797×64: unit rows and their similarity matrix, in one program.

python examples/digits.py        (needs scikit-learn)
"""

import numpy as np

import shardserve as ss
from shardserve import P


@ss.jit(in_shardings=P("devices", None), out_shardings=P("devices", None))
def similarity(images):
    """Cosine similarity of every image with every other."""
    unit = ss.normalize(images, norm="l2", axis=1)
    return unit @ unit.T


def load_images() -> np.ndarray:
    """1797 images of 8×8 pixels, which come with scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("this example needs scikit-learn: pip install scikit-learn") from None
    return load_digits().data.astype(np.float32)


def main(client: ss.Client) -> None:
    """Whose nearest neighbour shows the same digit?"""
    images = load_images()
    s = client.run(similarity, images)
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    np.testing.assert_allclose(s, unit @ unit.T, atol=1e-5)
    np.fill_diagonal(s, 0)  # the result is the caller's own
    print(f"similarity {s.shape}; image 0 is most like image {s[0].argmax()}")


if __name__ == "__main__":
    with ss.LocalServer(devices=8) as server:
        main(server)
