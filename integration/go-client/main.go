// A client as the orchestrators have it: Go's gRPC over a unix socket, in each of the ways in which
// kubelet and the sidecars have dialled it over the years. Built once for each of several versions
// of grpc-go (see the .mod files), because what they send as :authority differs.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// How to reach path: the target and the options that go with it.
func dial(style, path string) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithInsecure()}
	dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	switch style {
	case "kubelet": // since Kubernetes 1.26: the path as the target, the authority made harmless
		return grpc.Dial(path, append(options, dialer, grpc.WithAuthority("localhost"))...)
	case "old-kubelet": // before that: the path itself becomes the authority
		return grpc.Dial(path, append(options, dialer)...)
	case "sidecar": // csi-lib-utils today
		return grpc.Dial("unix://"+path, options...)
	case "old-sidecar": // csi-lib-utils before grpc-go knew the scheme
		return grpc.Dial("unix://"+path, append(options, dialer)...)
	case "short-scheme":
		return grpc.Dial("unix:"+path, options...)
	}
	return nil, fmt.Errorf("no style %q", style)
}

func run(style, path string) (map[string]interface{}, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := dial(style, path)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	defer conn.Close()
	identity := csi.NewIdentityClient(conn)
	probe, err := identity.Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return nil, fmt.Errorf("Probe: %w", err)
	}
	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("GetPluginInfo: %w", err)
	}
	node, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("NodeGetInfo: %w", err)
	}
	return map[string]interface{}{
		"grpc":    grpc.Version,
		"ready":   probe.GetReady().GetValue(),
		"name":    info.GetName(),
		"node_id": node.GetNodeId(),
	}, nil
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go-client STYLE SOCKET")
		os.Exit(2)
	}
	answer, err := run(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintf(os.Stderr, "grpc-go %s, %s: %v\n", grpc.Version, os.Args[1], err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(answer)
}
