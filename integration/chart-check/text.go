package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// Calls `each` with every document that has more than comments.
func documents(in io.Reader, each func([]byte)) error {
	reader := yaml.NewYAMLReader(bufio.NewReaderSize(in, 1<<20))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !blank(document) {
			each(document)
		}
	}
}

func blank(document []byte) bool {
	for _, line := range strings.Split(string(document), "\n") {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && line != "---" {
			return false
		}
	}
	return true
}

// Prints what a rendered Secret has under a key: the file that a pod would see.
func printSecret(in io.Reader, name, key string, out io.Writer) error {
	found := false
	var failure error
	err := documents(in, func(document []byte) {
		var secret corev1.Secret
		if sigsyaml.Unmarshal(document, &secret) != nil || secret.Kind != "Secret" || secret.Name != name {
			return
		}
		if text, there := secret.Data[key]; there {
			found = true
			_, failure = out.Write(text)
		}
	})
	if err == nil && failure == nil && !found {
		err = fmt.Errorf("no Secret %s with the key %s", name, key)
	}
	return errors.Join(err, failure)
}

// Prints the folder of the host that a container of the node pods has at a path.
func printMount(in io.Reader, container, path string, out io.Writer) error {
	var folders []string
	err := documents(in, func(document []byte) {
		var set appsv1.DaemonSet
		if sigsyaml.Unmarshal(document, &set) != nil || set.Kind != "DaemonSet" {
			return
		}
		sources := map[string]string{}
		for _, volume := range set.Spec.Template.Spec.Volumes {
			if volume.HostPath != nil {
				sources[volume.Name] = volume.HostPath.Path
			}
		}
		for _, one := range set.Spec.Template.Spec.Containers {
			for _, mount := range one.VolumeMounts {
				if one.Name == container && mount.MountPath == path {
					folders = append(folders, sources[mount.Name])
				}
			}
		}
	})
	if err == nil && len(folders) != 1 {
		err = fmt.Errorf("%s has %d mounts at %s", container, len(folders), path)
	}
	if err == nil {
		_, err = fmt.Fprintln(out, folders[0])
	}
	return err
}

// Prints the limits of the controller and of the node pods, each line starts with the kind of the workload:
// `Deployment memory MIB` of that container, `Deployment kill-timeout SECONDS`.
func printLimits(in io.Reader, container string, out io.Writer) error {
	var failure error
	say := func(kind, what string, number int64) {
		if failure == nil {
			_, failure = fmt.Fprintln(out, kind, what, number)
		}
	}
	each := func(kind string, pod corev1.PodSpec) {
		for _, one := range pod.Containers {
			limit, limited := one.Resources.Limits[corev1.ResourceMemory]
			if one.Name == container && limited {
				say(kind, "memory", limit.Value()>>20)
			}
		}
		if pod.TerminationGracePeriodSeconds != nil {
			say(kind, "kill-timeout", *pod.TerminationGracePeriodSeconds)
		}
	}
	err := documents(in, func(document []byte) {
		var set appsv1.DaemonSet
		if sigsyaml.Unmarshal(document, &set) == nil && set.Kind == "DaemonSet" {
			each(set.Kind, set.Spec.Template.Spec)
		}
		var deployment appsv1.Deployment
		if sigsyaml.Unmarshal(document, &deployment) == nil && deployment.Kind == "Deployment" {
			each(deployment.Kind, deployment.Spec.Template.Spec)
		}
	})
	return errors.Join(err, failure)
}
