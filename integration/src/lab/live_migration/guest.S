# A guest in one sector, which its firmware loads from its only disk. It writes numbered blocks one after the other,
# each by the firmware's calls for disks, and prints each number once its block is stored.
#
# Sector 0 holds this program, sector 1 the block of the last number, and sector N + 1 that of number N. Before each
# number it reads back the last one, and after it an earlier one. A block that is not as it was written is a line
# `wrong`, a call that fails a line `failed`; both end it.
	.code16
	.set	LAST, 1
	.set	WORDS, 128
	.set	STEP, 0x9e3779b9
	.set	OWN, 0x8000
	.set	FOUND, 0x8200
	.set	DATA, 0x3f8
	.set	STATUS, DATA + 5
	.set	EMPTY, 0x20

	.globl	_start
_start:
	ljmp	$0, $begin
begin:
	xor	%ax, %ax
	mov	%ax, %ds
	mov	%ax, %es
	mov	%ax, %ss
	mov	$_start, %sp
	cld
	mov	%dl, drive
	# The present number.
	xor	%ebp, %ebp
	mov	$LAST, %eax
	mov	%ebp, %ebx
	call	store
next:
	mov	$LAST, %eax
	mov	%ebp, %ebx
	call	compare
	inc	%ebp
	mov	%ebp, %ebx
	lea	1(%ebp), %eax
	call	store
	lea	1(%ebp), %ebx
	shr	$1, %ebx
	lea	1(%ebx), %eax
	call	compare
	mov	$LAST, %eax
	mov	%ebp, %ebx
	call	store
	call	tell
	jmp	next

# Writes the block of number %ebx to sector %eax.
store:
	call	prepare
	movw	$OWN, buffer
	mov	$0x4300, %ax
	jmp	transfer

# Reads sector %eax, which has to hold the block of number %ebx.
compare:
	call	prepare
	movw	$FOUND, buffer
	mov	$0x4200, %ax
	call	transfer
	mov	$OWN, %si
	mov	$FOUND, %di
	mov	$WORDS, %cx
	repe cmpsl
	mov	$wrong, %si
	jne	end
	ret

prepare:
	mov	%eax, sector
	mov	%ebx, %eax
	mov	$OWN, %di
	mov	$WORDS, %cx
1:	stosl
	add	$STEP, %eax
	loop	1b
	ret

transfer:
	movw	$1, count
	mov	drive, %dl
	mov	$packet, %si
	int	$0x13
	mov	$failed, %si
	jc	end
	ret

end:
	lodsb
	test	%al, %al
	jz	1f
	call	say
	jmp	end
1:	hlt
	jmp	1b

tell:
	mov	%ebp, %ebx
	mov	$8, %cx
1:	rol	$4, %ebx
	mov	%bl, %al
	and	$15, %al
	add	$'0', %al
	cmp	$'9', %al
	jbe	2f
	add	$('a' - '9' - 1), %al
2:	call	say
	loop	1b
	mov	$'\n', %al
say:
	push	%ax
	mov	$STATUS, %dx
1:	in	%dx, %al
	test	$EMPTY, %al
	jz	1b
	pop	%ax
	mov	$DATA, %dx
	out	%al, %dx
	ret

wrong:	.asciz	"wrong\n"
failed:	.asciz	"failed\n"
drive:	.byte	0

	.balign	4
packet:	.word	16
count:	.word	0
buffer:	.word	0, 0
sector:	.long	0, 0

	.org	510
	.word	0xaa55
