#!/bin/sh
exec containerd --config /etc/containerd/config.toml
