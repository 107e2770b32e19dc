// The registrar says to the kubelet where a CSI driver's socket is, as the node-driver-registrar
// sidecar does, which cannot be had as a Go module. It serves one gRPC service of two calls on a socket
// in the kubelet's folder plugins_registry.
//
//	registrar --csi-address=/csi/csi.sock --kubelet-registration-path=/var/lib/kubelet/plugins/X/csi.sock
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var (
	address  = flag.String("csi-address", "/csi/csi.sock", "the driver's socket, as this program sees it")
	endpoint = flag.String("kubelet-registration-path", "", "the driver's socket, as the kubelet sees it")
	folder   = flag.String("plugin-registration-path", "/registration", "the kubelet's folder plugins_registry")
)

type server struct {
	registration.UnimplementedRegistrationServer
	name  string
	ended chan error
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              s.name,
		Endpoint:          *endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// The kubelet does not ask again after a refusal, so the program ends and is started anew.
func (s *server) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("%s: registered: %v %s", s.name, status.PluginRegistered, status.Error)
	if !status.PluginRegistered {
		s.ended <- os.ErrInvalid
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// The name of the driver, once it answers.
func driverName() string {
	connection, err := grpc.NewClient("unix://"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	limit, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(limit, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		log.Fatalf("%s: %v", *address, err)
	}
	return info.GetName()
}

func main() {
	flag.Parse()
	if *endpoint == "" {
		log.Fatal("--kubelet-registration-path is missing")
	}
	s := &server{name: driverName(), ended: make(chan error, 1)}
	socket := filepath.Join(*folder, s.name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	grpcServer := grpc.NewServer()
	registration.RegisterRegistrationServer(grpcServer, s)
	go func() { s.ended <- grpcServer.Serve(listener) }()
	select {
	case err = <-s.ended:
	case <-signals:
	}
	// The kubelet forgets the driver when the socket is gone.
	grpcServer.Stop()
	os.Remove(socket)
	if err != nil {
		log.Fatal(err)
	}
}
