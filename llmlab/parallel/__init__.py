"""One model over several processes of this machine: every process computes a share, and messages join the shares."""
