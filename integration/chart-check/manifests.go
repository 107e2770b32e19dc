package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	sigsyaml "sigs.k8s.io/yaml"
)

// Kinds whose Go types are in no module that this one needs: only their names are looked at.
var unchecked = map[string]bool{
	"monitoring.coreos.com/v1/PodMonitor": true,
}

// As in the API of external-snapshotter, whose own module asks for a newer Kubernetes than this is for.
type volumeSnapshotClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Driver            string            `json:"driver"`
	DeletionPolicy    string            `json:"deletionPolicy"`
	Parameters        map[string]string `json:"parameters"`
}

type checker struct {
	decoder  runtime.Decoder
	problems []error
	objects  map[string]bool
	accounts []string
	rules    int
	blocks   changedBlocks
}

func (c *checker) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
}

func newChecker() (*checker, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	// Strict: an unknown or a repeated field is an error.
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	return &checker{decoder: codecs.UniversalDeserializer(), objects: map[string]bool{}}, nil
}

func checkManifests(in io.Reader, out io.Writer) error {
	check, err := newChecker()
	if err != nil {
		return err
	}
	count := 0
	err = documents(in, func(document []byte) {
		count++
		check.document(document)
	})
	if err != nil {
		return err
	}
	for _, account := range check.accounts {
		// Each namespace has one of its own.
		if account != "default" && !check.objects["ServiceAccount "+account] {
			check.problem("a pod runs as ServiceAccount %s, which is not there", account)
		}
	}
	check.changedBlocks()
	if count == 0 {
		check.problem("nothing was rendered")
	}
	fmt.Fprintf(out, "%d objects\n", count)
	return errors.Join(check.problems...)
}

func (c *checker) document(document []byte) {
	var meta metav1.PartialObjectMetadata
	if err := sigsyaml.Unmarshal(document, &meta); err != nil {
		c.problem("%v:\n%s", err, document)
		return
	}
	name := meta.Kind + " " + meta.Name
	if c.objects[name] {
		c.problem("%s: twice", name)
	}
	c.objects[name] = true
	for _, bad := range validation.IsDNS1123Subdomain(meta.Name) {
		c.problem("%s: name: %s", name, bad)
	}
	for key, value := range meta.Labels {
		for _, bad := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
			c.problem("%s: label %s=%s: %s", name, key, value, bad)
		}
	}
	if unchecked[meta.APIVersion+"/"+meta.Kind] {
		return
	}
	if meta.APIVersion == "snapshot.storage.k8s.io/v1" && meta.Kind == "VolumeSnapshotClass" {
		var class volumeSnapshotClass
		if err := sigsyaml.UnmarshalStrict(document, &class); err != nil || class.Driver == "" || class.DeletionPolicy == "" {
			c.problem("%s: %v: %s", name, err, document)
		}
		return
	}
	if meta.APIVersion == "cbt.storage.k8s.io/v1beta1" && meta.Kind == "SnapshotMetadataService" {
		if err := sigsyaml.UnmarshalStrict(document, &c.blocks.service); err != nil {
			c.problem("%s: %v", name, err)
		}
		return
	}
	object, _, err := c.decoder.Decode(document, nil, nil)
	if err != nil {
		c.problem("%s: %v", name, err)
		return
	}
	switch object := object.(type) {
	case *appsv1.Deployment:
		c.workload(name, object.Spec.Selector, &object.Spec.Template)
	case *appsv1.DaemonSet:
		c.workload(name, object.Spec.Selector, &object.Spec.Template)
	case *corev1.Secret:
		// A key that is left out of stringData stays in the cluster: what the values remove has to go.
		if len(object.StringData) > 0 {
			c.problem("%s: stringData", name)
		}
		c.blocks.secrets = append(c.blocks.secrets, object)
	case *corev1.Service:
		for _, bad := range validation.IsDNS1035Label(object.Name) {
			c.problem("%s: name: %s", name, bad)
		}
		c.blocks.services = append(c.blocks.services, object)
	case *rbacv1.ClusterRole:
		c.roles(name, object.Rules)
	case *rbacv1.Role:
		c.roles(name, object.Rules)
	}
}

// Each container says what it needs at least and at most, and a sidecar, which is a program in Go, knows the latter.
func (c *checker) resources(name string, container *corev1.Container) {
	if !strings.Contains(container.Image, "omnibus-csi") && !strings.HasPrefix(container.Image, "registry.k8s.io/sig-storage/") {
		return
	}
	resources := container.Resources
	if resources.Requests.Memory().IsZero() || resources.Requests.Cpu().IsZero() || resources.Limits.Memory().IsZero() {
		c.problem("%s: %s: no requests or no limit: %v", name, container.Name, resources)
	}
	if container.Name == "csi-driver" {
		return
	}
	limit := ""
	for _, variable := range container.Env {
		if variable.Name == "GOMEMLIMIT" {
			limit = variable.Value
		}
	}
	soft, err := resource.ParseQuantity(strings.TrimSuffix(limit, "B"))
	if err != nil || soft.Cmp(*resources.Limits.Memory()) >= 0 {
		c.problem("%s: %s: GOMEMLIMIT %q with a limit of %s", name, container.Name, limit, resources.Limits.Memory())
	}
}

func (c *checker) roles(name string, rules []rbacv1.PolicyRule) {
	if len(rules) == 0 {
		c.problem("%s: no rule", name)
	}
	for _, rule := range rules {
		all := strings.Join(append(append(rule.Verbs, rule.Resources...), rule.APIGroups...), " ")
		if strings.Contains(all, "*") {
			c.problem("%s: a rule for everything: %v", name, rule)
		}
		if slices.Contains(rule.Resources, "secrets") && !slices.Equal(rule.Verbs, []string{"get"}) {
			c.problem("%s: more than getting secrets: %v", name, rule)
		}
	}
}

// What the API server would refuse, or the kubelet, and strict decoding lets through.
func (c *checker) workload(name string, selector *metav1.LabelSelector, template *corev1.PodTemplateSpec) {
	wanted, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || wanted.Empty() || !wanted.Matches(labels.Set(template.Labels)) {
		c.problem("%s: its selector does not find its own pods", name)
	}
	c.blocks.pods = append(c.blocks.pods, template)
	pod := template.Spec
	if pod.ServiceAccountName != "" {
		c.accounts = append(c.accounts, pod.ServiceAccountName)
	}
	volumes := map[string]bool{}
	for _, volume := range pod.Volumes {
		if volumes[volume.Name] {
			c.problem("%s: volume %s twice", name, volume.Name)
		}
		volumes[volume.Name] = true
		if source := volume.HostPath; source != nil && !strings.HasPrefix(source.Path, "/") {
			c.problem("%s: volume %s: hostPath %q", name, volume.Name, source.Path)
		}
	}
	if len(pod.Containers) == 0 {
		c.problem("%s: no container", name)
	}
	containers := map[string]bool{}
	mounted := map[string]bool{}
	for _, container := range pod.Containers {
		if containers[container.Name] {
			c.problem("%s: container %s twice", name, container.Name)
		}
		containers[container.Name] = true
		if container.Image == "" || strings.Contains(container.Image, "<no value>") || strings.HasSuffix(container.Image, ":latest") {
			c.problem("%s: %s: image %q is not pinned", name, container.Name, container.Image)
		}
		c.resources(name, &container)
		for _, argument := range container.Args {
			if strings.Contains(argument, "<no value>") || strings.Contains(argument, "{{") {
				c.problem("%s: %s: argument %q", name, container.Name, argument)
			}
		}
		paths := map[string]bool{}
		for _, mount := range container.VolumeMounts {
			mounted[mount.Name] = true
			if !volumes[mount.Name] {
				c.problem("%s: %s mounts %s, which is no volume of the pod", name, container.Name, mount.Name)
			}
			if paths[mount.MountPath] {
				c.problem("%s: %s: two mounts at %s", name, container.Name, mount.MountPath)
			}
			paths[mount.MountPath] = true
		}
		names := map[string]bool{}
		for _, variable := range container.Env {
			if names[variable.Name] {
				c.problem("%s: %s: variable %s twice", name, container.Name, variable.Name)
			}
			names[variable.Name] = true
		}
	}
	for volume := range volumes {
		if !mounted[volume] && volume != "registration-dir" {
			c.problem("%s: nothing mounts the volume %s", name, volume)
		}
	}
}
