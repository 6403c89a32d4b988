//go:build components

// Package apiserver names the programs that tests/kube/build makes, so that go.mod pins them and everything below them.
package apiserver

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
