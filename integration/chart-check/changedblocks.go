package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// As in the API of external-snapshot-metadata, which is no module of the proxy.
type snapshotMetadataService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Address  string `json:"address"`
		Audience string `json:"audience"`
		CACert   []byte `json:"caCert"`
	} `json:"spec"`
}

// The objects between a client that asks for changed blocks and the sidecar that answers.
type changedBlocks struct {
	service  snapshotMetadataService
	services []*corev1.Service
	secrets  []*corev1.Secret
	pods     []*corev1.PodTemplateSpec
}

// A client goes to the address, believes a certificate of the CA that is for that host, and reaches the sidecar's port.
func (c *checker) changedBlocks() {
	all := &c.blocks
	sidecar, pod := all.sidecar()
	if all.service.Name == "" {
		if sidecar != nil {
			c.problem("external-snapshot-metadata without a SnapshotMetadataService: clients do not find it")
		}
		return
	}
	name := "SnapshotMetadataService " + all.service.Name
	if sidecar == nil {
		c.problem("%s: no external-snapshot-metadata", name)
		return
	}
	if all.service.Spec.Audience == "" || len(all.service.Spec.CACert) == 0 {
		c.problem("%s: no audience or no caCert: %+v", name, all.service.Spec)
	}
	host, port, err := net.SplitHostPort(all.service.Spec.Address)
	if err != nil {
		c.problem("%s: address: %v", name, err)
		return
	}
	target, err := all.target(host, port, pod)
	if err != nil {
		c.problem("%s: %v", name, err)
	} else if !slices.Contains(sidecar.Args, "--port="+target) {
		c.problem("%s: its Service leads to port %s, which is not the sidecar's: %v", name, target, sidecar.Args)
	}
	if probe := sidecar.ReadinessProbe; probe == nil || probe.HTTPGet == nil || !slices.Contains(sidecar.Args, "--http-endpoint=:"+probe.HTTPGet.Port.String()) {
		c.problem("%s: the sidecar is not asked for its health at its own port", name)
	}
	if err := all.believed(host, sidecar, pod); err != nil {
		c.problem("%s: %v", name, err)
	}
}

func (b *changedBlocks) sidecar() (*corev1.Container, *corev1.PodTemplateSpec) {
	for _, pod := range b.pods {
		for i := range pod.Spec.Containers {
			if pod.Spec.Containers[i].Name == "external-snapshot-metadata" {
				return &pod.Spec.Containers[i], pod
			}
		}
	}
	return nil, nil
}

// The port of the pod that the Service of a host has behind one of its own.
func (b *changedBlocks) target(host, port string, pod *corev1.PodTemplateSpec) (string, error) {
	for _, service := range b.services {
		if service.Name+"."+service.Namespace != host {
			continue
		}
		if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			return "", fmt.Errorf("Service %s does not find the sidecar's pod", service.Name)
		}
		for _, one := range service.Spec.Ports {
			if fmt.Sprint(one.Port) == port {
				return one.TargetPort.String(), nil
			}
		}
		return "", fmt.Errorf("Service %s has no port %s", service.Name, port)
	}
	return "", fmt.Errorf("no Service for the host %s", host)
}

// Whether a client believes the certificate. One in a Secret of the user is not seen here.
func (b *changedBlocks) believed(host string, sidecar *corev1.Container, pod *corev1.PodTemplateSpec) error {
	mounted := ""
	for _, mount := range sidecar.VolumeMounts {
		for _, volume := range pod.Spec.Volumes {
			if mount.MountPath == "/tls" && volume.Name == mount.Name && volume.Secret != nil {
				mounted = volume.Secret.SecretName
			}
		}
	}
	if mounted == "" {
		return fmt.Errorf("the sidecar has no Secret at /tls")
	}
	for _, secret := range b.secrets {
		if secret.Name != mounted {
			continue
		}
		if secret.Type != corev1.SecretTypeTLS || !bytes.Equal(secret.Data["ca.crt"], b.service.Spec.CACert) {
			return fmt.Errorf("Secret %s is of type %s, or has another CA", mounted, secret.Type)
		}
		pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return fmt.Errorf("Secret %s: %w", mounted, err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(b.service.Spec.CACert) {
			return fmt.Errorf("caCert is no certificate")
		}
		for _, name := range []string{host, host + ".svc", host + ".svc.cluster.local"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
				return fmt.Errorf("Secret %s: %w", mounted, err)
			}
		}
	}
	return nil
}
